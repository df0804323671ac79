//! What requests ask.

use serde_json::json;
use treadle_host::pages::Content;
use treadle_sight::{By, SpanRow, Window};

use super::answers::Facts;

/// The paths of questions.
pub(crate) const PATHS: [&str; 9] = [
    "/sight/overview",
    "/sight/workers",
    "/sight/spans",
    "/sight/span",
    "/sight/transfers",
    "/sight/task",
    "/sight/profile",
    "/sight/logs",
    "/sight/errors",
];
/// Characters of the longest key that is asked for.
const LONGEST: usize = 4_096;
/// How far from a time a span may be, in nanoseconds, if the request does not say.
const NEAR: u64 = 1_000_000;

/// A question.
#[derive(Debug)]
pub(crate) enum Question {
    Overview,
    /// Workers with a text, or the one of a number: also those that the overview leaves out.
    Workers {
        find: String,
        worker: Option<u32>,
    },
    Spans(Window),
    Span {
        at: u64,
        worker: u32,
        lane: u16,
        within: u64,
    },
    Transfers,
    /// Where threads were.
    Profile {
        group: Option<String>,
        window: Option<(u64, u64)>,
        worker: Option<u32>,
    },
    /// Lines of logs.
    Logs {
        find: String,
        worker: Option<u32>,
        /// The least that is shown.
        level: u8,
        window: Option<(u64, u64)>,
    },
    /// What tasks failed with.
    Errors,
    /// A task by the text of its key. The scheduler's thread says what it knows, for [`Known`](Self::Known).
    Task(String),
    /// A task, with what the scheduler knows of it.
    Known(Box<Facts>),
    /// A span, with the key that the scheduler knows, and the keys of its inputs.
    Keyed(Box<SpanRow>, Vec<String>),
}

/// An error, as JSON.
pub(in crate::sight) fn refused(status: u16, error: &str) -> Content {
    Content {
        status,
        ..Content::new("application/json", json!({"error": error}).to_string())
    }
}

impl Question {
    /// The question of a path and the query of its request.
    ///
    /// # Errors
    /// With what is wrong, for the one who asks.
    pub(crate) fn of(path: &str, query: &str) -> Result<Self, Content> {
        let query = Query(query);
        match path {
            "/sight/overview" => Ok(Self::Overview),
            "/sight/workers" => Ok(Self::Workers {
                find: query.short("find")?.unwrap_or_default(),
                worker: query.small("worker")?,
            }),
            "/sight/transfers" => Ok(Self::Transfers),
            "/sight/errors" => Ok(Self::Errors),
            "/sight/spans" => {
                let (from, to) = (query.need("from")?, query.need("to")?);
                if to <= from {
                    return Err(refused(400, "to= has to be after from="));
                }
                let by = match query.text("by").as_deref() {
                    None | Some("worker") => By::Worker,
                    Some("group") => By::Group,
                    Some(_) => return Err(refused(400, "by= is worker or group")),
                };
                let group = query.number("group")?;
                let group = group.map(u16::try_from).transpose();
                Ok(Self::Spans(Window {
                    from,
                    to,
                    width: query.number("width")?.unwrap_or(1_000).min(1 << 16) as u32,
                    by,
                    group: group.map_err(|_| refused(400, "there is no such group"))?,
                    worker: query.small("worker")?,
                }))
            }
            "/sight/span" => Ok(Self::Span {
                at: query.need("at")?,
                worker: match query.small("worker")? {
                    Some(worker) => worker,
                    None => return Err(refused(400, "worker= is missing")),
                },
                lane: u16::try_from(query.need("lane")?)
                    .map_err(|_| refused(400, "there is no such lane"))?,
                within: query.number("within")?.unwrap_or(NEAR),
            }),
            "/sight/task" => match query.text("key") {
                Some(key) if key.len() <= LONGEST => Ok(Self::Task(key)),
                Some(_) => Err(refused(400, "key= is too long")),
                None => Err(refused(400, "key= is missing")),
            },
            "/sight/profile" => Ok(Self::Profile {
                group: query.short("group")?,
                window: query.window()?,
                worker: query.small("worker")?,
            }),
            "/sight/logs" => Ok(Self::Logs {
                find: query.short("find")?.unwrap_or_default(),
                worker: query.small("worker")?,
                window: query.window()?,
                level: match query
                    .short("level")?
                    .unwrap_or_default()
                    .to_lowercase()
                    .as_str()
                {
                    "" | "debug" => 0,
                    "info" => 20,
                    "warning" => 30,
                    "error" => 40,
                    _ => return Err(refused(400, "level= is debug, info, warning or error")),
                },
            }),
            _ => Err(refused(404, "there is no such page")),
        }
    }
}

/// The query of a request.
struct Query<'a>(&'a str);

impl Query<'_> {
    fn text(&self, name: &str) -> Option<String> {
        let mut pairs = self.0.split('&').filter_map(|pair| pair.split_once('='));
        let (_, value) = pairs.find(|(own, _)| *own == name)?;
        Some(decoded(value))
    }

    /// A text; an empty one is none.
    fn short(&self, name: &str) -> Result<Option<String>, Content> {
        match self.text(name) {
            Some(text) if text.len() > LONGEST => {
                Err(refused(400, &format!("{name}= is too long")))
            }
            text => Ok(text.filter(|text| !text.is_empty())),
        }
    }

    fn number(&self, name: &str) -> Result<Option<u64>, Content> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        let whole = text.parse::<u64>().ok();
        // Scripts have numbers with a fraction, and with an exponent.
        let number = whole.or_else(|| {
            let number = text.parse::<f64>().ok()?;
            (number >= 0.0 && number < 2.0_f64.powi(63)).then_some(number as u64)
        });
        match number {
            Some(number) => Ok(Some(number)),
            None => Err(refused(400, &format!("{name}= is no number"))),
        }
    }

    fn small(&self, name: &str) -> Result<Option<u32>, Content> {
        let number = self.number(name)?.map(u32::try_from).transpose();
        number.map_err(|_| refused(400, &format!("{name}= is too large")))
    }

    /// A time, from one moment to another.
    fn window(&self) -> Result<Option<(u64, u64)>, Content> {
        let window = match (self.number("from")?, self.number("to")?) {
            (None, None) => return Ok(None),
            (from, to) => (from.unwrap_or(0), to.unwrap_or(u64::MAX)),
        };
        if window.1 <= window.0 {
            return Err(refused(400, "to= has to be after from="));
        }
        Ok(Some(window))
    }

    fn need(&self, name: &str) -> Result<u64, Content> {
        match self.number(name)? {
            Some(number) => Ok(number),
            None => Err(refused(400, &format!("{name}= is missing"))),
        }
    }
}

/// A value of a query without its escapes.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        match first {
            b'+' => bytes.push(b' '),
            b'%' => match after.split_at_checked(2) {
                Some((digits, after)) if digits.iter().all(u8::is_ascii_hexdigit) => {
                    let digits = str::from_utf8(digits).unwrap_or("3f");
                    bytes.push(u8::from_str_radix(digits, 16).unwrap_or(b'?'));
                    rest = after;
                }
                _ => bytes.push(b'%'),
            },
            other => bytes.push(other),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_read_and_hostile_ones_refused() {
        let status = |path: &str, query: &str| match Question::of(path, query) {
            Ok(_) => 200,
            Err(content) => content.status,
        };
        for (query, expected) in [
            ("from=0&to=5&width=10", 200),
            ("from=0&to=5.5e9&width=10&by=group&token=x", 200),
            ("from=0&to=1&width=99999999999", 200),
            ("from=0&to=0", 400),
            ("from=-1&to=5", 400),
            ("from=NaN&to=5", 400),
            ("from=1&to=inf", 400),
            ("to=5", 400),
            ("", 400),
            ("from=0&to=5&by=<script>", 400),
            ("from=0&to=5&group=70000", 400),
            ("from=0&to=5&worker=4294967296", 400),
            ("from=%30&to=%35", 200),
        ] {
            assert_eq!(status("/sight/spans", query), expected, "{query}");
        }
        assert_eq!(status("/sight/span", "at=5&worker=1&lane=32768"), 200);
        assert_eq!(status("/sight/span", "at=5&worker=1&lane=65536"), 400);
        assert_eq!(status("/sight/task", "key="), 200);
        assert_eq!(
            status("/sight/task", &format!("key={}", "a".repeat(5_000))),
            400
        );
        assert_eq!(status("/sight/other", ""), 404);
        let long = "a".repeat(5_000);
        for (query, expected) in [
            ("", 200),
            ("group=inc&from=0&to=5&worker=1", 200),
            ("from=5&to=5", 400),
            ("from=5", 200),
            ("from=-1", 400),
            ("worker=x", 400),
            (&format!("group={long}"), 400),
        ] {
            assert_eq!(status("/sight/profile", query), expected, "{query}");
        }
        for (query, expected) in [
            ("", 200),
            ("find=%00%ff&worker=1", 200),
            ("worker=-1", 400),
            (&format!("find={long}"), 400),
        ] {
            assert_eq!(status("/sight/workers", query), expected, "{query}");
        }
        for (query, expected) in [
            ("", 200),
            ("find=%00%ff&worker=1&level=WARNING", 200),
            ("level=loud", 400),
            ("worker=1&from=5&to=9", 200),
            ("from=5&to=4", 400),
            ("worker=-1", 400),
            (&format!("find={long}"), 400),
        ] {
            assert_eq!(status("/sight/logs", query), expected, "{query}");
        }
    }

    #[test]
    fn keys_come_without_their_escapes() {
        let key = |text: &str| match Question::of("/sight/task", &format!("x=1&key={text}")) {
            Ok(Question::Task(key)) => key,
            other => panic!("{other:?}"),
        };
        assert_eq!(key("%3Cb%3E%26+x"), "<b>& x");
        assert_eq!(key("100%"), "100%");
        assert_eq!(key("%zz%4"), "%zz%4");
        assert_eq!(key("%ff%c3%a4"), "\u{fffd}ä");
    }
}
