//! Answers, as HTTP sends them.

use serde::Serialize;
use serde_json::json;
use treadle_host::pages::{Content, Text};
use treadle_sight::{Picture, Sight, SpanRow, Window};
use treadle_types::ObjectId;

use super::questions::{Question, refused};

/// Spans of a task that are shown.
const MOST_SPANS: usize = 20;

/// What the scheduler knows of a task.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Facts {
    pub(crate) key: String,
    /// Its value, or that of its latest attempt.
    #[serde(skip)]
    pub(crate) object: u64,
    /// How often it was sent to a worker, as far as is remembered.
    #[serde(skip)]
    pub(crate) runs: u32,
    pub(crate) state: &'static str,
    /// Where its value is, or it runs: names.
    pub(crate) workers: Vec<String>,
    pub(crate) story: Vec<Step>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nbytes: Option<u64>,
    pub(crate) inputs: Vec<String>,
    /// What it raised, pickled.
    #[serde(skip)]
    pub(crate) raised: Option<bytes::Bytes>,
}

/// A step of a task.
#[derive(Debug, Serialize)]
pub(crate) struct Step {
    /// Seconds since 1970.
    pub(crate) time: f64,
    pub(crate) state: &'static str,
    pub(crate) worker: Option<String>,
}

/// JSON, made on the thread that sends it.
fn json_of(value: impl Serialize + Send + 'static) -> Text {
    Box::new(move || match serde_json::to_vec(&value) {
        Ok(bytes) => Content::new("application/json", bytes),
        Err(error) => refused(500, &error.to_string()),
    })
}

fn refusal(status: u16, error: &'static str) -> Text {
    Box::new(move || refused(status, error))
}

/// A picture: the length of its JSON, that, and rectangles from a multiple of four bytes on.
fn picture(window: Window, picture: Picture) -> Text {
    Box::new(move || {
        let groups = picture.groups.iter();
        let groups = groups.map(|(id, name)| (id.to_string(), json!(name)));
        let head = json!({
            "from": window.from,
            "to": window.to,
            "lanes": picture.lanes,
            "groups": serde_json::Map::from_iter(groups),
            "count": picture.count,
            "exact": picture.exact,
        });
        let head = head.to_string();
        let mut bytes = Vec::with_capacity(8 + head.len() + 20 * picture.rectangles.len());
        bytes.extend_from_slice(&(head.len() as u32).to_le_bytes());
        bytes.extend_from_slice(head.as_bytes());
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        for rectangle in &picture.rectangles {
            rectangle.put(&mut bytes);
        }
        Content::new("application/octet-stream", bytes)
    })
}

/// What follows from a question.
pub(in crate::sight) enum Answer {
    Page(Text),
    /// The scheduler knows more of it.
    AskKey(Box<SpanRow>),
}

/// The answer to a question.
pub(in crate::sight) fn answer(sight: &Sight, question: Question, now: u64, live: bool) -> Answer {
    Answer::Page(match question {
        Question::Overview => json_of(sight.overview(now, live)),
        Question::Spans(window) => picture(window, sight.picture(window, now)),
        Question::Transfers => json_of(sight.matrix()),
        Question::Profile {
            group,
            window,
            worker,
        } => match sight.flame(group.as_deref(), window, worker) {
            Some(flame) => json_of(flame),
            None => refusal(404, "there is no such worker"),
        },
        Question::Logs {
            find,
            worker,
            level,
        } => json_of(sight.lines(&find, worker, level)),
        Question::Span {
            at,
            worker,
            lane,
            within,
        } => match sight.span(at, worker, lane, within) {
            // Others are about no value, or about several.
            Some(span) if matches!(span.kind, "task" | "fetch") => {
                return Answer::AskKey(Box::new(span));
            }
            Some(span) => {
                let known = Question::Keyed(Box::new(span), Vec::new());
                return answer(sight, known, now, live);
            }
            None => refusal(404, "there is no span"),
        },
        Question::Keyed(span, inputs) => {
            let mut answer = json!(span);
            answer["inputs"] = json!(inputs);
            json_of(answer)
        }
        Question::Known(facts) => {
            let spans = sight.spans_of(ObjectId::from_u64(facts.object), facts.runs, MOST_SPANS);
            let text = facts.raised.as_ref();
            let text = text.map(|raised| super::errors::text(raised).unwrap_or("(unknown)"));
            let mut answer = json!(facts);
            answer["spans"] = json!(spans);
            if let Some(text) = text {
                answer["error"] = json!(treadle_sight::about_error(text));
            }
            json_of(answer)
        }
        // The scheduler does not know it, or not any more.
        Question::Task(key) => match sight.object_of(&key) {
            Some(object) => {
                let spans = sight.spans_of(object, 1, MOST_SPANS);
                json_of(
                    json!({"key": key, "state": "forgotten", "workers": [], "story": [], "spans": spans}),
                )
            }
            None => refusal(404, "there is no such task"),
        },
    })
}

/// The page that refuses.
pub(crate) fn page_of(content: Content) -> Text {
    Box::new(move || content)
}
