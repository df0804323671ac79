//! The dashboard of a process of the service: the files that a scheduler serves, and what the process knows.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde_json::{Value as Json, json};
use treadle_host::pages::{Content, Options, Page, PageServer, Refusals, dashboard};
use treadle_reactor::thread::lock;

use crate::ServiceError;

/// The version of the answers.
const VERSION: u32 = 1;
/// An answer is as new as this. All who ask meanwhile get the same one.
const PACE: Duration = Duration::from_millis(250);
/// Between two answers there is so many times as much time as making one takes.
const REST: u32 = 20;

/// Which process it is.
#[derive(Clone, Debug)]
pub(crate) struct About {
    /// Where it listens.
    pub(crate) address: String,
    /// What tells it from those that were there before.
    pub(crate) id: String,
}

/// What who may not see the pages of a process is told. `$command` starts it.
macro_rules! refusals {
    ($command:literal, $process:literal) => {
        Refusals {
            unauthorized: concat!(
                "these pages are for who has their link: ",
                $command,
                " shows it on a terminal. It ends with ?token=…; programs may send the token as a header \
                 instead, Authorization: Bearer …\n"
            ),
            foreign_host: "the Host of the request is no name of this server: use its address\n",
            busy: concat!("the ", $process, " is busy, or gone\n"),
        }
    };
}
pub(crate) use refusals;

/// Something that is made anew at most so often, however many ask for it.
#[derive(Default)]
struct Paced(Mutex<Option<Made>>);

struct Made {
    at: Instant,
    took: Duration,
    text: Bytes,
}

impl Paced {
    fn text(&self, now: Instant, make: impl FnOnce() -> String) -> Bytes {
        let mut made = lock(&self.0);
        if let Some(last) = &*made
            && now.saturating_duration_since(last.at) < PACE.max(last.took * REST)
        {
            return last.text.clone();
        }
        let began = Instant::now();
        let text = Bytes::from(make());
        let took = began.elapsed();
        *made = Some(Made {
            at: now + took,
            took,
            text: text.clone(),
        });
        text
    }
}

/// A page of JSON, which is made where it is asked for.
pub(crate) fn json_page(
    path: &'static str,
    make: impl Fn() -> String + Send + Sync + 'static,
) -> Page {
    let paced = Paced::default();
    Page {
        path,
        is_open: false,
        ask: Box::new(move |_, reply| {
            let text = paced.text(Instant::now(), &make);
            reply(Box::new(move || Content::new("application/json", text)));
        }),
    }
}

/// Serves the dashboard with what `service` says, and `more` pages.
///
/// # Errors
/// The port is taken, or the system has no more threads or descriptors.
pub(crate) fn serve(
    options: Options,
    about: About,
    refusals: Refusals,
    service: impl Fn() -> Json + Send + Sync + 'static,
    more: impl IntoIterator<Item = Page>,
) -> Result<PageServer, ServiceError> {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    let (began, start) = (since_1970.unwrap_or_default(), Instant::now());
    let about = Arc::new(about);
    let overview = json_page("/sight/overview", move || {
        let now = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        json!({
            "version": VERSION,
            "live": true,
            "now": now,
            "began": began.as_secs_f64(),
            "cluster": {
                "address": about.address,
                "id": about.id,
                "treadle": env!("CARGO_PKG_VERSION"),
            },
            "service": service(),
        })
        .to_string()
    });
    let pages = dashboard::files().chain([overview]).chain(more);
    let failed = |reason| tracing::error!(target: treadle_log::SHUFFLE, "{reason}: its pages end");
    PageServer::start(options, pages.collect(), refusals, failed).map_err(|source| {
        ServiceError::System {
            what: "serving pages",
            source,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_asks_soon_gets_the_same_answer() {
        let paced = Paced::default();
        let start = Instant::now();
        let first = paced.text(start, || "first".into());
        let same = paced.text(start, || panic!("it is made again"));
        assert_eq!((&*first, &*same), (&b"first"[..], &b"first"[..]));
        // However long the first one took to be made.
        let later = start + Duration::from_secs(3600);
        assert_eq!(paced.text(later, || "second".into()), "second");
    }
}
