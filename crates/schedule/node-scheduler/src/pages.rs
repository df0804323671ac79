//! The pages of the scheduler: of which the scheduler's thread knows the content.

use std::sync::Arc;

use prometheus_client::encoding::text::encode_registry;
use treadle_host::pages::{Content as Body, Options, Page, PageServer, Refusals, Reply, Text};
use treadle_schedule_wire::NodeError;
use treadle_sight::SpanRow;

use super::hub::Hub;
use super::mailbox::{Mailbox, PageRequest};
use super::sight::{self, Inbox, PATHS, Question, page_of};

const REFUSALS: Refusals = Refusals {
    unauthorized: "these pages are for who has their link: treadle scheduler shows it on a terminal, and \
         Client.dashboard_link is it. It ends with ?token=…; programs may send the token as a header \
         instead, Authorization: Bearer …\n",
    foreign_host: "the Host of the request is no name of this server: use its address, or allow the name \
         with `treadle scheduler --http-name NAME`\n",
    busy: "the scheduler is busy, or gone\n",
};

/// What the scheduler's thread is asked for.
#[derive(Debug)]
pub(super) enum Content {
    Metrics,
    State,
    /// The key of what was done.
    Span(Box<SpanRow>),
    /// What is known of a task, by the text of its key.
    Task(String),
}

impl Content {
    /// Collects it; the text is made of it where it is sent, or where more is known.
    pub(super) fn answer(self, hub: &Hub, reply: Reply) {
        let text: Text = match self {
            Self::Metrics => {
                let metrics = hub.metrics();
                Box::new(move || {
                    let mut text = String::new();
                    encode_registry(&mut text, &metrics).expect("a string takes it");
                    Body::new("text/plain; version=0.0.4", text)
                })
            }
            Self::State => {
                let state = hub.state();
                Box::new(move || {
                    let state = serde_json::to_vec(&state);
                    let state = state.expect("plain data, with strings for keys");
                    Body::new("application/json", state)
                })
            }
            Self::Span(mut span) => {
                let inputs = hub.key_of_span(&mut span);
                return hub.ask_sight(Question::Keyed(span, inputs), reply);
            }
            Self::Task(key) => {
                let question = match hub.facts_of(&key) {
                    Some(facts) => Question::Known(Box::new(facts)),
                    None => Question::Task(key),
                };
                return hub.ask_sight(question, reply);
            }
        };
        reply(text);
    }
}

/// A page that the scheduler's thread knows.
fn page(path: &'static str, content: fn() -> Content, mailbox: &Arc<Mailbox>) -> Page {
    let mailbox = Arc::clone(mailbox);
    let ask = move |_: &str, reply| {
        let content = content();
        mailbox.post(PageRequest { content, reply });
    };
    Page {
        path,
        is_open: false,
        ask: Box::new(ask),
    }
}

/// A page of who watches.
fn watched(path: &'static str, inbox: &Arc<Inbox>, mailbox: &Arc<Mailbox>) -> Page {
    let (inbox, mailbox) = (Arc::clone(inbox), Arc::clone(mailbox));
    let ask = move |query: &str, reply: Reply| match Question::of(path, query) {
        Err(content) => reply(page_of(content)),
        Ok(Question::Task(key)) => {
            let content = Content::Task(key);
            mailbox.post(PageRequest { content, reply });
        }
        Ok(question) => inbox.ask(question, reply),
    };
    Page {
        path,
        is_open: false,
        ask: Box::new(ask),
    }
}

/// Serves the pages; requests wait in the mailbox, or in the inbox of who watches.
pub(super) fn serve(
    options: Options,
    mailbox: &Arc<Mailbox>,
    inbox: Option<&Arc<Inbox>>,
) -> Result<PageServer, NodeError> {
    let mut pages = vec![
        page("/metrics", || Content::Metrics, mailbox),
        page("/json/state", || Content::State, mailbox),
    ];
    if let Some(inbox) = inbox {
        pages.extend(sight::assets());
        pages.extend(PATHS.into_iter().map(|path| watched(path, inbox, mailbox)));
    }
    let address = options.address;
    let failed = |reason| {
        tracing::error!(target: treadle_log::SCHEDULER, "{reason}: its pages end");
    };
    PageServer::start(options, pages, REFUSALS, failed)
        .map_err(|source| NodeError::Http { address, source })
}
