//! The scheduler's thread.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use treadle_net::{ClusterId, Lane, Listener, Peer, Poller, Wait};
use treadle_scheduler::{Scheduler, TICK};

use super::http::{Http, Page};
use super::hub::{Hub, Settings};
use super::mailbox::{Letter, Mailbox};
use super::{End, Log, Options, Server};
use crate::error::NodeError;
use crate::{caught, lock, log, thread};

/// The poller's key of what other threads want.
const MAIL: usize = 0;
/// Turns after which what was said so far is sent, even if there is more to take.
const TURNS: usize = 256;
/// How long ending waits for what was sent before.
const FAREWELL: Duration = Duration::from_secs(2);

fn system(what: &'static str) -> impl Fn(rustix::io::Errno) -> NodeError {
    move |source| NodeError::System {
        what,
        source: source.into(),
    }
}

/// Starts the threads.
pub(super) fn start(options: Options, mut log: Log) -> Result<Server, NodeError> {
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
    let http = match options.http {
        Some(pages) => Some(Http::start(pages, &mailbox)?),
        None => None,
    };
    if let Some(http) = &http
        && !http.address().ip().is_loopback()
    {
        log(format_args!(
            "the pages at http://{} can be reached from other machines, without encryption: who \
             reads along on the way learns their token and what they show, and can change nothing",
            http.address()
        ));
    }
    let settings = Settings {
        id: format!("Scheduler-{cluster}"),
        address: address.to_string(),
        http: http
            .as_ref()
            .map(|http| (http.link().to_owned(), http.address().port())),
        python: options.python,
        worker_timeout: options.worker_timeout,
        largest_message: options.largest_message,
        started: SystemTime::now(),
    };
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let knock = Arc::new(eventfd(0, flags).map_err(system("waiting for connections"))?);
    listener.set_notifier(Some(Arc::clone(&knock)));
    let end = Arc::new(End::default());
    let reactor = Reactor {
        hub: Hub::new(settings, Scheduler::new(options.scheduler), log),
        poller,
        listener,
        mailbox: Arc::clone(&mailbox),
        next: MAIL + 1,
        has_mail: false,
    };
    let porter = Porter::start(knock, &mailbox)?;
    let over = Ended(Arc::clone(&end));
    let body = move || {
        let _over = over;
        let _porter = porter;
        // Its connections close with it, so that everybody hears of the end.
        if let Err(reason) = caught(|| reactor.run()) {
            log::line(format_args!("treadle scheduler: {reason}: it ends"));
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
        mailbox,
        end,
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

/// A thread that waits at the door: the listener tells a descriptor, and the poller wants a signal.
struct Porter {
    knock: Arc<OwnedFd>,
    is_over: Arc<std::sync::atomic::AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Porter {
    fn start(knock: Arc<OwnedFd>, mailbox: &Arc<Mailbox>) -> Result<Self, NodeError> {
        let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (over, door, mailbox) = (
            Arc::clone(&is_over),
            Arc::clone(&knock),
            Arc::clone(mailbox),
        );
        let wait = move || {
            while !over.load(std::sync::atomic::Ordering::Acquire) {
                let polled = poll(&mut [PollFd::new(&*door, PollFlags::IN)], None);
                if polled.is_ok() {
                    let _ = rustix::io::read(&*door, &mut [0; 8]);
                    mailbox.knock();
                }
            }
        };
        let thread = thread::start("treadle-porter", wait).map_err(|source| NodeError::System {
            what: "starting a thread for connections",
            source,
        })?;
        Ok(Self {
            knock,
            is_over,
            thread: Some(thread),
        })
    }
}

impl Drop for Porter {
    fn drop(&mut self) {
        self.is_over
            .store(true, std::sync::atomic::Ordering::Release);
        let _ = rustix::io::write(&*self.knock, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Reactor {
    hub: Hub,
    poller: Arc<Poller>,
    listener: Listener,
    mailbox: Arc<Mailbox>,
    /// The next key in the poller.
    next: usize,
    /// Whether there may be letters.
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
                let now = self.hub.now;
                self.hub.counters.tick(now);
            }
            self.hub.flush();
            self.read_letter();
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
                    self.accept();
                    self.has_mail = true;
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
            self.hub.counters.connections += 1;
            self.hub.accept(key, peer.clone());
            peer.watch(&self.poller, key);
        }
    }

    /// Answers one letter, after all who take part in the cluster: the next one waits for the next
    /// turn.
    fn read_letter(&mut self) {
        if !self.has_mail {
            return;
        }
        let Some((letter, is_last)) = self.mailbox.take() else {
            self.has_mail = false;
            return;
        };
        match letter {
            Letter::Page(page, reply) => {
                let text = match page {
                    Page::Metrics => self.hub.metrics(),
                    Page::State => self.hub.state_page(),
                };
                // Whoever asked may be gone.
                let _ = reply.try_send(text);
            }
        }
        self.has_mail = !is_last;
        if self.has_mail {
            self.mailbox.knock();
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
