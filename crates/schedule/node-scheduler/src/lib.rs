//! The scheduler's process, without Python: [`treadle_gateway`], the pure core, with sockets, pages over
//! HTTP and logs.
//!
//! One thread holds everything: it waits for any of the connections, takes what has arrived on them,
//! hands it to the core, and sends what follows when nothing more is there. Nothing waits for a timer.
//!
//! | module | what |
//! | --- | --- |
//! | `reactor` | the thread |
//! | `hub` | what it holds, and what it does with what arrives |
//! | `links` | the connections, and what is to be sent on them |
//! | `stream`, `tracing`, `metrics`, `state`, `pages`, `mailbox` | what can be watched |
//! | `watching`, `sight` | what is recorded always, and a thread that keeps it |

mod hub;
mod links;
mod mailbox;
mod metrics;
mod pages;
mod reactor;
mod sight;
mod state;
mod stream;
mod tracing;
mod watching;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use treadle_host::pages::{Options as Pages, PageServer};
use treadle_net::{Address, ClusterId};
use treadle_reactor::thread::lock;
use treadle_schedule_wire as wire;
use treadle_schedule_wire::NodeError;
use treadle_scheduler::Config;

use mailbox::Mailbox;
use sight::SightThread;
pub use sight::{History, HistoryError, Options as Sight};
pub use treadle_sight::End as HistoryEnd;

/// Settings of a scheduler.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to listen; port 0 takes a free one.
    pub address: Address,
    /// Security and limits of the connections.
    pub net: treadle_net::Options,
    /// Pages over HTTP; `None`: there are none.
    pub http: Option<Pages>,
    /// What is kept of the cluster's doings.
    pub sight: Sight,
    /// The core's settings.
    pub scheduler: Config,
    /// `major.minor` of the cluster's Python; `None`: that of the first node.
    pub python: Option<String>,
    /// For how long a worker may say nothing. They say something every second.
    pub worker_timeout: Duration,
    /// The longest message that is taken from a node, in bytes.
    pub largest_message: u64,
}

impl Default for Options {
    fn default() -> Self {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Self {
            address: Address {
                tls: false,
                host: loopback.to_string(),
                port: 0,
            },
            net: treadle_net::Options::default(),
            http: Some(Pages::at(SocketAddr::new(loopback, 0))),
            sight: Sight::default(),
            scheduler: Config::default(),
            python: None,
            worker_timeout: Duration::from_secs(10),
            largest_message: wire::LARGEST_MESSAGE,
        }
    }
}

/// Says that the thread has ended, however it did.
#[derive(Debug, Default)]
struct End {
    is_over: Mutex<bool>,
    changed: Condvar,
}

/// A scheduler. Dropping it closes it.
#[derive(Debug)]
pub struct Server {
    address: Address,
    cluster: ClusterId,
    http: Option<PageServer>,
    sight: Option<SightThread>,
    mailbox: Arc<Mailbox>,
    end: Arc<End>,
    /// That of the threads.
    process: u32,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Server {
    /// Starts one. Its events go to the subscriber of `tracing` that the caller has.
    ///
    /// # Errors
    /// When an address or the options are at fault, or a port is taken.
    pub fn start(options: Options) -> Result<Self, NodeError> {
        reactor::start(options)
    }

    /// Where it listens, with the port that it got.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The id of the cluster, which begins with it.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// Where it serves pages.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(PageServer::address)
    }

    /// The link to the pages, with the token that lets in.
    pub fn http_link(&self) -> Option<&str> {
        self.http.as_ref().map(PageServer::link)
    }

    /// Tells workers and clients that it ends, and ends. What was sent before reaches them, if they
    /// read it soon.
    pub fn close(&self) {
        if self.process != std::process::id() {
            // A forked child has none of the threads, and shares the parent's descriptors. Who had a lock may
            // be none of its own either.
            return;
        }
        self.mailbox.end();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            // A panic was printed by itself.
            let _ = thread.join();
        }
        if let Some(http) = &self.http {
            http.close();
        }
        if let Some(sight) = &self.sight {
            sight.close();
        }
    }

    /// Waits until it has ended: it was closed, or a client told it to. `false`: the time is over.
    ///
    /// In a forked child there is nothing to wait for: that is the parent's.
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        if self.process != std::process::id() {
            return true;
        }
        // A time that no clock reaches is none.
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut is_over = lock(&self.end.is_over);
        while !*is_over {
            let Some(until) = until else {
                let waited = self.end.changed.wait(is_over);
                is_over = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.end.changed.wait_timeout(is_over, left);
            is_over = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            self.close();
        } else {
            let thread = self.thread.get_mut();
            std::mem::forget(thread.unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}
