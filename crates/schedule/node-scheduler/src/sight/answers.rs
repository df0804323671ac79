//! Answers, as HTTP sends them.

use serde::Serialize;
use serde_json::json;
use treadle_host::pages::{Content, Text};
use treadle_sight::{Picture, Sight, SpanRow, Window};
use treadle_types::ObjectId;

use super::errors;
use super::questions::{Question, refused};

/// Spans of a task that are shown.
const MOST_SPANS: usize = 20;
/// Lines of its worker's log that are shown of a task, and how long after its end they came, in nanoseconds.
const MOST_LINES: usize = 20;
const AFTER: u64 = 100_000_000;

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
        Question::Workers { find, worker } => json_of(sight.workers(&find, worker, now, live)),
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
            window,
        } => json_of(sight.lines(&find, worker, level, window)),
        Question::Errors => json_of(sight.errors()),
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
            let raised = facts.raised.as_ref();
            let raised = raised.map(|raised| errors::texts(raised).unwrap_or(("(unknown)", "")));
            let failed = raised.map(|(text, traceback)| {
                (
                    treadle_sight::about_error(text),
                    treadle_sight::about_traceback(traceback),
                )
            });
            let object = Some(ObjectId::from_u64(facts.object));
            told(sight, json!(facts), (object, facts.runs), failed)
        }
        // The scheduler does not know it, or not any more.
        Question::Task(key) => {
            let failed = sight.error_of(&key);
            let object = sight.object_of(&key);
            let object = object.or_else(|| failed.and_then(|(_, object)| object));
            if object.is_none() && failed.is_none() {
                return Answer::Page(refusal(404, "there is no such task"));
            }
            let failed = failed.map(|(row, _)| (row.text.clone(), row.traceback.clone()));
            let about = json!({"key": key, "state": "forgotten", "workers": [], "story": []});
            told(sight, about, (object, 1), failed)
        }
    })
}

/// What is known of a task: its spans, what it failed with, and the lines of its worker's log of that time.
fn told(
    sight: &Sight,
    mut about: serde_json::Value,
    (object, runs): (Option<ObjectId>, u32),
    failed: Option<(String, String)>,
) -> Text {
    let spans = object.map(|object| sight.spans_of(object, runs, MOST_SPANS));
    let spans = spans.unwrap_or_default();
    if let Some((text, traceback)) = failed {
        about["error"] = json!(text);
        about["traceback"] = json!(traceback);
    }
    if let Some(span) = spans.iter().find(|span| span.kind == "task") {
        let window = Some((span.from, span.to.saturating_add(AFTER)));
        let mut log = sight.lines("", Some(span.worker_id), 0, window).lines;
        log.truncate(MOST_LINES);
        log.reverse();
        about["log"] = json!(log);
    }
    about["spans"] = json!(spans);
    json_of(about)
}

/// The page that refuses.
pub(crate) fn page_of(content: Content) -> Text {
    Box::new(move || content)
}
