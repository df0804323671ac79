//! The scheduler's thread.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use foldhash::fast::SeedableRandomState;
use tracing::{dispatcher, error, warn};
use treadle_gateway::{Core, Settings};
use treadle_net::{ClusterId, Lane, Listener, Peer, Poller, Wait};
use treadle_reactor::thread::{self, caught, lock};
use treadle_schedule_wire::NodeError;
use treadle_scheduler::TICK;

use super::hub::Hub;
use super::mailbox::{Mailbox, PageRequest};
use super::pages;
use super::sight::{self, About, Inbox};
use super::{End, Options, Server};

/// The poller's key of what other threads want.
const MAIL: usize = 0;
/// That of connections that wait to be accepted.
const ACCEPT: usize = 1;
/// Turns after which what was said so far is sent, even if there is more to take.
const TURNS: usize = 256;
/// How long ending waits for what was sent before.
const FAREWELL: Duration = Duration::from_secs(2);
/// Definitions that no task uses are kept up to this number: most are used again.
const IDLE_DEFINITIONS: usize = 1024;

/// Starts the threads.
pub(super) fn start(options: Options) -> Result<Server, NodeError> {
    let lane = Lane::new()?;
    let poller = Poller::on(&lane);
    let cluster = ClusterId::random();
    let mut net = treadle_net::Options {
        cluster: Some(cluster),
        lane: Some(lane),
        shared_memory: false,
        ..options.net.clone()
    };
    // A worker that is waited for longer is not cut off before.
    net.pair.timeout = net.pair.timeout.max(options.worker_timeout);
    let listener = Listener::bind(&options.address, &net)?;
    let address = listener.address().clone();
    let mailbox = Arc::new(Mailbox::new(poller.signal(MAIL)));
    let inbox = options.sight.is_on.then(|| Arc::new(Inbox::new()));
    let http = match options.http {
        Some(options) => Some(pages::serve(options, &mailbox, inbox.as_ref())?),
        None => None,
    };
    if let Some(http) = &http
        && !http.address().ip().is_loopback()
    {
        warn!(
            target: treadle_log::SCHEDULER,
            "the pages at http://{} can be reached from other machines, without encryption: who \
             reads along on the way learns their token and what they show, and can change nothing",
            http.address()
        );
    }
    let settings = Settings {
        id: format!("Scheduler-{cluster}"),
        address: address.to_string(),
        http: http
            .as_ref()
            .map(|http| (http.link().to_owned(), http.address().port())),
        sight: inbox.is_some(),
        python: options.python,
        worker_timeout: options.worker_timeout,
        started: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default(),
        idle_definitions: IDLE_DEFINITIONS,
        hasher: SeedableRandomState::random(),
    };
    let about = About {
        address: settings.address.clone(),
        id: settings.id.clone(),
        unix: settings.started.as_micros() as u64,
    };
    let sight = match &inbox {
        Some(inbox) => Some(
            sight::start(&options.sight, about, inbox, &mailbox).map_err(|source| {
                NodeError::System {
                    what: "recording what the cluster does",
                    source,
                }
            })?,
        ),
        None => None,
    };
    let core = Core::new(settings, options.scheduler);
    listener.watch(&poller, ACCEPT);
    let end = Arc::new(End::default());
    let reactor = Reactor {
        hub: Hub::new(core, options.largest_message, inbox),
        poller,
        listener,
        mailbox: Arc::clone(&mailbox),
        next: ACCEPT + 1,
        has_mail: false,
    };
    let over = Ended(Arc::clone(&end));
    let subscriber = dispatcher::get_default(Clone::clone);
    let body = move || {
        let _over = over;
        let _subscriber = dispatcher::set_default(&subscriber);
        // Its connections close with it, so that everybody hears of the end.
        if let Err(reason) = caught(|| reactor.run()) {
            error!(target: treadle_log::SCHEDULER, "{reason}: it ends");
        }
    };
    let thread = thread::start("treadle-scheduler", body).map_err(|source| NodeError::System {
        what: "starting the scheduler's thread",
        source,
    })?;
    Ok(Server {
        address,
        cluster,
        http,
        sight,
        mailbox,
        end,
        process: std::process::id(),
        thread: Mutex::new(Some(thread)),
    })
}

/// Says that the thread has ended.
struct Ended(Arc<End>);

impl Drop for Ended {
    fn drop(&mut self) {
        *lock(&self.0.is_over) = true;
        self.0.changed.notify_all();
    }
}

struct Reactor {
    hub: Hub,
    poller: Arc<Poller>,
    listener: Listener,
    mailbox: Arc<Mailbox>,
    /// The next key in the poller.
    next: usize,
    /// Whether there may be requests for pages.
    has_mail: bool,
}

impl Reactor {
    fn run(mut self) {
        let mut ticked = Instant::now();
        while !self.mailbox.is_over() && !self.hub.is_ending {
            self.take_turns(ticked + TICK);
            let now = Instant::now();
            if now >= ticked + TICK {
                ticked = now;
                self.hub.look_at_clock();
                self.hub.tick();
            }
            self.hub.flush();
            self.answer_request();
        }
        self.say_farewell();
    }

    /// Waits for something, and does all that there is.
    fn take_turns(&mut self, until: Instant) {
        let mailbox = Arc::clone(&self.mailbox);
        let mut interrupted = || mailbox.is_over();
        let mut deadline = until;
        for _ in 0..TURNS {
            let mut wait = Wait {
                deadline: Some(deadline),
                interrupted: Some(&mut interrupted),
            };
            let Ok(turn) = self.poller.next(&mut wait) else {
                return;
            };
            if deadline == until {
                self.hub.look_at_clock();
                // What else is there, without waiting.
                deadline = Instant::now();
            }
            match turn.key() {
                MAIL => {
                    drop(turn);
                    self.has_mail = true;
                }
                ACCEPT => {
                    drop(turn);
                    self.accept();
                }
                key => {
                    if self.hub.turn(key) {
                        turn.again();
                    }
                }
            }
        }
    }

    fn accept(&mut self) {
        // The listener is closed only when this thread ends.
        while let Ok(Some(peer)) = self.listener.try_accept() {
            let key = self.next;
            self.next += 1;
            self.hub.accept(key, peer.clone());
            peer.watch(&self.poller, key);
        }
    }

    /// Answers one request for a page, after all who take part in the cluster: the next one waits
    /// for the next turn.
    fn answer_request(&mut self) {
        if !self.has_mail {
            return;
        }
        let Some((PageRequest { content, reply }, is_last)) = self.mailbox.take() else {
            self.has_mail = false;
            return;
        };
        content.answer(&self.hub, reply);
        self.has_mail = !is_last;
        if self.has_mail {
            self.mailbox.look_again();
        }
    }

    /// Ends all connections, in order.
    fn say_farewell(mut self) {
        self.listener.close();
        let peers: Vec<Peer> = self.hub.farewell();
        let until = Instant::now() + FAREWELL;
        while Instant::now() < until && !peers.iter().all(Peer::is_closed) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
