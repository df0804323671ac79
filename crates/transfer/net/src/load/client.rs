//! The side that asks.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use treadle_reactor::Wait;
use treadle_reactor::thread::lock;
use treadle_transfer::PairEnd;

use super::{Histogram, Messages, TURN, message};
use crate::address::Address;
use crate::error::NetError;
use crate::options::Options;
use crate::peer::Peer;
use crate::poller::Poller;

/// The calling thread looks so often whether it is interrupted.
const INTERRUPT: Duration = Duration::from_millis(25);

/// What to ask for.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Connections; at least one.
    pub channels: usize,
    /// Requests under way on each of them; at least one.
    pub concurrency: usize,
    /// Bytes of a request.
    pub message_size: usize,
    /// Time before anything counts.
    pub warmup: Duration,
    /// Time in which answers count.
    pub duration: Duration,
}

/// What came of one connection.
#[derive(Clone, Debug, Default)]
pub struct Channel {
    /// Requests that were answered in time.
    pub requests: u64,
    /// Bytes of the answers.
    pub response_bytes: u64,
    /// From handing a request over until its answer was taken.
    pub latencies: Histogram,
}

/// What came of a load.
#[derive(Clone, Debug)]
pub struct Report {
    /// The time in which answers counted.
    pub elapsed: Duration,
    /// All together.
    pub total: Channel,
    /// Each connection.
    pub channels: Vec<Channel>,
}

/// Connects `load.channels` times, keeps `load.concurrency` requests under way on each connection,
/// and counts the answers. Ends early when the wait does.
///
/// # Errors
/// When a connection does not come about or ends, or the wait ends before the warm-up did.
pub fn drive(
    address: &Address,
    options: &Options,
    load: &Load,
    wait: &mut Wait<'_>,
) -> Result<Report, NetError> {
    let poller = Poller::new()?;
    let request = message(load.message_size);
    let mut peers = Vec::new();
    for _ in 0..load.channels.max(1) {
        peers.push(Peer::connect(address, options, wait)?);
    }
    let begin = Instant::now() + load.warmup;
    let client = Client {
        channels: peers
            .iter()
            .map(|peer| Asking::new(Messages::new(peer.clone(), request.clone())))
            .collect(),
        concurrency: load.concurrency.max(1),
        begin,
        end: begin + load.duration,
        stop: AtomicBool::new(false),
        error: Mutex::new(None),
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let outcome = std::thread::scope(|scope| {
        for _ in 0..peers.len().min(cores) {
            scope.spawn(|| client.work(&poller));
        }
        for (key, peer) in peers.iter().enumerate() {
            peer.watch(&poller, key);
        }
        let outcome = client.supervise(wait);
        client.stop.store(true, Ordering::Relaxed);
        outcome
    });
    if let Some(error) = lock(&client.error).take() {
        return Err(error);
    }
    let stopped = outcome?;
    let channels: Vec<Channel> = client
        .channels
        .into_iter()
        .map(|asking| asking.into_inner().unwrap_or_else(PoisonError::into_inner))
        .map(|asking| asking.channel)
        .collect();
    let mut total = Channel::default();
    for channel in &channels {
        total.requests += channel.requests;
        total.response_bytes += channel.response_bytes;
        total.latencies.merge(&channel.latencies);
    }
    Ok(Report {
        elapsed: stopped.min(client.end) - begin,
        total,
        channels,
    })
}

struct Client {
    channels: Vec<Mutex<Asking>>,
    concurrency: usize,
    begin: Instant,
    end: Instant,
    stop: AtomicBool,
    error: Mutex<Option<NetError>>,
}

/// A connection with its requests under way.
struct Asking {
    messages: Messages,
    /// When they were handed over, with how many, the first first.
    under_way: VecDeque<(Instant, usize)>,
    count: usize,
    channel: Channel,
}

impl Asking {
    fn new(messages: Messages) -> Mutex<Self> {
        Mutex::new(Self {
            messages,
            under_way: VecDeque::new(),
            count: 0,
            channel: Channel::default(),
        })
    }

    /// Takes answers, and asks again. Returns whether there may be more.
    fn turn(&mut self, client: &Client) -> Result<bool, NetError> {
        let arrived = self.messages.receive()?;
        let now = Instant::now();
        let counts = (client.begin..client.end).contains(&now);
        if counts {
            self.channel.requests += arrived.messages as u64;
            self.channel.response_bytes += arrived.bytes;
        }
        let Some(left) = self.count.checked_sub(arrived.messages) else {
            let reason = "the server sent more answers than there were requests";
            return Err(NetError::Ended(PairEnd::Lost(reason.into())));
        };
        self.count = left;
        let mut answered = arrived.messages;
        while answered > 0 {
            let (began, asked) = self.under_way.front_mut().expect("an answer has a request");
            let these = answered.min(*asked);
            if counts {
                self.channel.latencies.record(now - *began, these as u64);
            }
            *asked -= these;
            answered -= these;
            if *asked == 0 {
                self.under_way.pop_front();
            }
        }
        if now < client.end {
            let missing = client.concurrency - self.count;
            let sent = self.messages.send(missing)?;
            self.count += sent;
            if sent > 0 {
                self.under_way.push_back((now, sent));
            }
        }
        Ok(arrived.messages >= TURN)
    }
}

impl Client {
    /// Waits for the end; returns when that was.
    fn supervise(&self, wait: &mut Wait<'_>) -> Result<Instant, NetError> {
        loop {
            let now = Instant::now();
            if now >= self.end || self.stop.load(Ordering::Relaxed) {
                return Ok(now);
            }
            let early = if wait.is_interrupted() {
                Some(NetError::Interrupted)
            } else if wait.deadline.is_some_and(|deadline| now >= deadline) {
                Some(NetError::Timeout)
            } else {
                None
            };
            match early {
                Some(_) if now > self.begin => return Ok(now),
                Some(error) => return Err(error),
                None => std::thread::park_timeout((self.end - now).min(INTERRUPT)),
            }
        }
    }

    fn work(&self, poller: &Poller) {
        let mut interrupted = || self.stop.load(Ordering::Relaxed);
        while !self.stop.load(Ordering::Relaxed) {
            let mut wait = Wait {
                deadline: Some(self.end),
                interrupted: Some(&mut interrupted),
            };
            let Ok(turn) = poller.next(&mut wait) else {
                return;
            };
            match lock(&self.channels[turn.key()]).turn(self) {
                Ok(true) => turn.again(),
                Ok(false) => {}
                Err(error) => {
                    lock(&self.error).get_or_insert(error);
                    self.stop.store(true, Ordering::Relaxed);
                    return;
                }
            }
        }
    }
}
