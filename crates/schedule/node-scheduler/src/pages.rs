//! The pages of the scheduler: of which the scheduler's thread knows the content.

use std::sync::Arc;

use prometheus_client::encoding::text::encode_registry;
use treadle_host::pages::{Options, Page, PageServer, Refusals, Text};
use treadle_schedule_wire::NodeError;

use super::hub::Hub;
use super::mailbox::{Mailbox, PageRequest};

const REFUSALS: Refusals = Refusals {
    unauthorized: "these pages are for who has their link: treadle scheduler shows it on a terminal, and \
         Client.dashboard_link is it. It ends with ?token=…; programs may send the token as a header \
         instead, Authorization: Bearer …\n",
    foreign_host: "the Host of the request is no name of this server: use its address, or allow the name \
         with `treadle scheduler --http-name NAME`\n",
    busy: "the scheduler is busy, or gone\n",
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Content {
    Metrics,
    State,
}

impl Content {
    /// Collects it; the text is made of it where it is sent.
    pub(super) fn collect(self, hub: &Hub) -> Text {
        match self {
            Self::Metrics => {
                let metrics = hub.metrics();
                Box::new(move || {
                    let mut text = String::new();
                    encode_registry(&mut text, &metrics).expect("a string takes it");
                    text
                })
            }
            Self::State => {
                let state = hub.state();
                Box::new(move || {
                    serde_json::to_string(&state).expect("plain data, with strings for keys")
                })
            }
        }
    }
}

/// Serves the pages; requests wait in the mailbox.
pub(super) fn serve(options: Options, mailbox: &Arc<Mailbox>) -> Result<PageServer, NodeError> {
    let page = |path, kind, content| {
        let mailbox = Arc::clone(mailbox);
        Page {
            path,
            kind,
            ask: Box::new(move |reply| mailbox.post(PageRequest { content, reply })),
        }
    };
    let pages = vec![
        page("/metrics", "text/plain; version=0.0.4", Content::Metrics),
        page("/json/state", "application/json", Content::State),
    ];
    let address = options.address;
    let failed = |reason| {
        tracing::error!(target: treadle_log::SCHEDULER, "{reason}: its pages end");
    };
    PageServer::start(options, pages, REFUSALS, failed)
        .map_err(|source| NodeError::Http { address, source })
}
