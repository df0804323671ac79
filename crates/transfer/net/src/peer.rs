//! A pair of peers: the state machine with the sockets around it, and what an application calls.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_reactor::thread::lock;
use treadle_reactor::{Driver, Token, Wait, Waiters, Waiting, Waker, awake};
use treadle_security::secret::Secret;
use treadle_transfer::layout::{Layout, Place};
use treadle_transfer::{Config, Event, PairEnd};

use crate::dial::Remote;
use crate::dialled::ClusterId;
use crate::error::NetError;
use crate::inner::{Action, Inner, Outbound};
use crate::lane::Lane;
use crate::objects::{Completion, Incoming, Received, Sending, gather, inline_frames};
use crate::options::SendOptions;
use crate::poller::{Poller, Watch};
use crate::segments::Unmapped;
use crate::stream::Stream;
use crate::{segments, wire};

/// Bytes of headers that wait to be written, above which `send_many` waits.
pub(crate) const MAX_QUEUED: usize = 4 << 20;
/// Messages are written after this many bytes of a batch.
const BATCH: usize = 256 * 1024;
/// How long closing waits for what was sent before.
const LINGER: Duration = Duration::from_secs(5);

/// What every part of a pair refers to.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) inner: Mutex<Inner>,
    pub(crate) waiters: Waiters,
    /// The driver of the control connection.
    pub(crate) driver: Arc<Driver>,
    /// The control connection.
    pub(crate) token: Token,
    /// Since when it is there, in the time that [`awake::now`] tells.
    epoch: Duration,
    /// Stops of this process that the pair knows of.
    stops: AtomicU64,
    /// The other side, to dial; `None` where the other side dials.
    pub(crate) remote: Option<Remote>,
    pub(crate) session: u64,
    pub(crate) session_secret: Secret,
    service: u32,
    client: u64,
    pub(crate) address: String,
    pub(crate) cluster: Option<ClusterId>,
    pub(crate) bytes_sent: AtomicU64,
    pub(crate) bytes_received: AtomicU64,
    /// Bytes of objects that went or came as shared memory.
    pub(crate) bytes_shared: AtomicU64,
    /// What was unmapped here, to be reported.
    pub(crate) released: Mutex<Vec<Unmapped>>,
}

impl Shared {
    pub(crate) fn now(&self) -> Duration {
        awake::now().saturating_sub(self.epoch)
    }

    /// Whether this process was stopped since this was asked last.
    pub(crate) fn was_stopped(&self) -> bool {
        let stops = awake::stops();
        self.stops.swap(stops, Ordering::Relaxed) != stops
    }

    pub(crate) fn locked(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// Does something under the lock, applies its effects, and does outside of the lock what must
    /// not be done under it.
    pub(crate) fn with<R>(self: &Arc<Self>, act: impl FnOnce(&mut Inner) -> R) -> R {
        let mut inner = self.locked();
        let result = act(&mut inner);
        inner.apply(self);
        inner.flush(self);
        let (garbage, actions) = inner.leave();
        drop(inner);
        // Dropping memory of Python objects may run Python.
        drop(garbage);
        for action in actions {
            match action {
                Action::Notify => self.waiters.wake(),
                Action::Wake(waker) => waker.wake(),
                Action::Queue(watch) => watch.changed(),
                Action::Call(due) => {
                    // A time that no clock reaches is none.
                    if let Some(when) = awake::moment(self.epoch.saturating_add(due)) {
                        self.driver.sources.call_at(self.token, when);
                    }
                }
                Action::Dial { stripe, sends } => crate::stripes::stripe(self, stripe, sends),
                Action::Close(driver, token, stream) => {
                    driver.sources.deregister(token);
                    drop(stream);
                }
            }
        }
        result
    }

    /// Something has panicked: the pair ends.
    pub(crate) fn broken(self: &Arc<Self>, reason: String) {
        self.with(|inner| inner.end(PairEnd::Lost(reason), true));
    }

    /// Hands an event to the state machine.
    pub(crate) fn handle(self: &Arc<Self>, event: Event) {
        let now = self.now();
        self.with(|inner| inner.handle(event, now));
    }

    pub(crate) fn wait<R>(
        self: &Arc<Self>,
        wait: &mut Wait<'_>,
        mut attempt: impl FnMut(&mut Inner) -> Option<Result<R, NetError>>,
    ) -> Result<R, NetError> {
        let mut found = None;
        let mut done = || {
            found = attempt(&mut self.locked());
            found.is_some()
        };
        self.driver.wait(&self.waiters, &mut done, wait)?;
        found.expect("the wait ended with it")
    }
}

/// The end of a connection that an application holds. Clones are the same end; when the last one
/// is dropped, the connection is closed.
#[derive(Clone, Debug)]
pub struct Peer {
    pub(crate) shared: Arc<Shared>,
    _closer: Arc<Closer>,
}

#[derive(Debug)]
struct Closer(Arc<Shared>);

impl Drop for Closer {
    fn drop(&mut self) {
        let shared = &self.0;
        shared.with(|inner| inner.end(PairEnd::Goodbye, true));
    }
}

/// What a handshake established.
pub(crate) struct Established {
    pub(crate) stream: Stream,
    pub(crate) driver: Arc<Driver>,
    pub(crate) token: Token,
    pub(crate) session: u64,
    pub(crate) session_secret: Secret,
    pub(crate) peer_credit: u64,
    pub(crate) service: u32,
    pub(crate) client: u64,
    pub(crate) address: String,
    pub(crate) cluster: Option<ClusterId>,
}

impl Peer {
    /// Starts driving a pair over an established control connection.
    pub(crate) fn start(established: Established, config: &Config, remote: Option<Remote>) -> Self {
        let Established {
            stream,
            driver,
            token,
            session,
            session_secret,
            peer_credit,
            service,
            client,
            address,
            cluster,
        } = established;
        let config = Config {
            dials: remote.is_some(),
            ..config.clone()
        };
        awake::watch();
        let shared = Arc::new(Shared {
            inner: Mutex::new(Inner::new(
                &config,
                peer_credit,
                stream,
                Arc::clone(&driver),
                token,
            )),
            waiters: Waiters::default(),
            driver,
            token,
            epoch: awake::now(),
            stops: AtomicU64::new(awake::stops()),
            remote,
            session,
            session_secret,
            service,
            client,
            address,
            cluster,
            bytes_sent: AtomicU64::new(0),
            bytes_received: AtomicU64::new(0),
            bytes_shared: AtomicU64::new(0),
            released: Mutex::new(Vec::new()),
        });
        let source: Arc<dyn treadle_reactor::Source> = Arc::clone(&shared) as _;
        shared.driver.sources.replace(token, source);
        shared.with(|inner| inner.listen(&shared));
        Self {
            _closer: Arc::new(Closer(Arc::clone(&shared))),
            shared,
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The other side's address, as people write it.
    pub fn address(&self) -> &str {
        &self.shared.address
    }

    /// What the connection is for, as the side that dialled says.
    pub fn service(&self) -> u32 {
        self.shared.service
    }

    /// The number of the side that dialled, as that says; 0: it has none.
    pub fn client(&self) -> u64 {
        self.shared.client
    }

    /// The cluster of the listener that this side connected to, if it is of one.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.shared.cluster
    }

    /// Sends an object: `kind` is the application's, and comes out with the frames. Large frames
    /// are not copied: they must stay as they are until the object is sent.
    ///
    /// Returns at once; [`Sending::wait`] tells when the receiver has it. Frames that travel in the
    /// header are sent, for this purpose, when they are on their way.
    ///
    /// # Errors
    /// For an object with too many frames or bytes.
    pub fn send(&self, kind: u32, frames: &[Bytes]) -> Result<Sending, NetError> {
        self.send_with(kind, frames, SendOptions::default())
    }

    /// Writes what was [corked](SendOptions::corked).
    pub fn flush(&self) {
        self.shared.with(|inner| inner.control.hurry());
    }

    /// As [`Peer::send`], with options.
    ///
    /// # Errors
    /// For an object with too many frames or bytes, and where memory lacks to gather the small ones.
    pub fn send_with(
        &self,
        kind: u32,
        frames: &[Bytes],
        options: SendOptions,
    ) -> Result<Sending, NetError> {
        let started = Instant::now();
        let sizes: Vec<u64> = frames.iter().map(|frame| frame.len() as u64).collect();
        let layout = Layout::of(&sizes)?;
        let regions = gather(frames, &layout)?;
        let completion = Arc::new(Completion {
            outcome: OnceLock::new(),
            written: AtomicU64::new(0),
        });
        let bytes = layout.body();
        let first = layout.places.first();
        let is_checked = !(options.has_own_checks && matches!(first, Some(Place::Inline { .. })));
        let now = self.shared.now();
        let shares = self.shared.locked().shares_memory();
        let exports = if shares {
            segments::export(&regions)
        } else {
            None
        };
        let object = self.shared.with(|inner| {
            let object = inner.next_object();
            let mut header = Vec::with_capacity(layout.inline as usize + 64);
            let inline = inline_frames(frames, &layout);
            let known = exports.as_ref();
            let known = known.and_then(|exports| inner.lent.known(exports, now));
            let is_known = known.is_some();
            let known = known.unwrap_or_default();
            let shared = exports.as_ref().map(|_| &known[..]);
            let cost = wire::encode_object(object, kind, &sizes, shared, inline, &mut header);
            let event = Event::Send {
                object,
                regions: layout.regions,
                cost,
                shared: exports.is_some(),
            };
            let outbound = Outbound {
                header,
                regions,
                is_checked,
                exports,
                is_known,
                started,
                accepted: None,
                completion: Some(Arc::clone(&completion)),
            };
            inner.corked = options.corked;
            inner.send(object, outbound, event, now);
            inner.just_sent = Some(object);
            object
        });
        Ok(Sending {
            object,
            bytes,
            completion,
            shared: Arc::clone(&self.shared),
        })
    }

    /// Sends small objects of one frame each, of less than 64 KiB each, in order. Waits while
    /// the receiver does not take what was sent before.
    ///
    /// # Errors
    /// When the connection ends, or the wait does; then some of them were sent.
    pub fn send_many<'a>(
        &self,
        objects: impl Iterator<Item = (u32, &'a [u8])>,
        wait: &mut Wait<'_>,
    ) -> Result<(), NetError> {
        let mut objects = objects.peekable();
        while objects.peek().is_some() {
            self.send_batch(&mut objects);
            self.wait_for_room(wait)?;
        }
        // From here on, closing does not stop them.
        self.shared.wait(wait, |inner| match inner.ended() {
            Some(end) => Some(Err(NetError::Ended(end))),
            None => inner.all_offered().then_some(Ok(())),
        })
    }

    /// Sends a batch of the objects, as [`Peer::send_many`] does, without waiting; returns how many.
    /// [`Peer::has_room`] tells whether to send more.
    pub fn send_batch<'a>(&self, objects: &mut impl Iterator<Item = (u32, &'a [u8])>) -> usize {
        let now = self.shared.now();
        self.shared.with(|inner| {
            let start = inner.queued();
            let mut sent = 0;
            while inner.queued() < start + BATCH
                && let Some((kind, bytes)) = objects.next()
            {
                inner.send_small(kind, bytes, now);
                inner.apply(&self.shared);
                sent += 1;
            }
            sent
        })
    }

    /// Waits while headers of more than a few MiB wait to be written. [`Peer::send`] does not, so
    /// whoever sends without waiting for the result calls this before.
    ///
    /// # Errors
    /// When the connection ends, or the wait does.
    pub fn wait_for_room(&self, wait: &mut Wait<'_>) -> Result<(), NetError> {
        self.shared.wait(wait, |inner| match inner.ended() {
            Some(end) => Some(Err(NetError::Ended(end))),
            None => (inner.queued() < MAX_QUEUED).then_some(Ok(())),
        })
    }

    /// Whether [`Peer::wait_for_room`] would return at once.
    pub fn has_room(&self) -> bool {
        let inner = self.shared.locked();
        inner.ended().is_some() || inner.queued() < MAX_QUEUED
    }

    /// The next object in the order of sending, for this caller alone, as soon as its header is
    /// here.
    ///
    /// # Errors
    /// When the connection ended and every object that came before was received.
    pub fn next(&self, wait: &mut Wait<'_>) -> Result<Incoming, NetError> {
        let object = self.shared.wait(wait, |inner| inner.claim())?;
        Ok(Incoming {
            object,
            shared: Arc::clone(&self.shared),
        })
    }

    /// The next object if its header is here. `None`: not yet.
    ///
    /// # Errors
    /// As for [`Peer::next`].
    pub fn try_next(&self) -> Result<Option<Incoming>, NetError> {
        let claimed = self.shared.locked().claim().transpose()?;
        Ok(claimed.map(|object| Incoming {
            object,
            shared: Arc::clone(&self.shared),
        }))
    }

    /// From now on an object that its sender gives up is an error in its place. Otherwise it is left out, if
    /// nobody had claimed it.
    pub fn forbid_gaps(&self) {
        self.shared.locked().is_gapless = true;
    }

    /// Whether [`Peer::try_next`] has something to say.
    pub fn has_next(&self) -> bool {
        self.shared.locked().has_next()
    }

    /// Takes objects that came in their headers alone, at most `most` of them, as long as they are
    /// next.
    pub fn take_small(&self, most: usize, into: &mut Vec<Received>) {
        let now = self.shared.now();
        self.shared.with(|inner| inner.take_small(most, now, into));
    }

    /// What to wake whenever something about this pair changes.
    pub fn set_waker(&self, waker: Option<Waker>) {
        self.shared.locked().waker = waker;
    }

    /// The calling thread is unparked whenever something about this pair changes, until the result is
    /// dropped. It does not move what comes: another thread must.
    pub fn unpark_on_change(&self) -> Waiting<'_> {
        self.shared.waiters.enter()
    }

    /// Queues this pair as `key` in the poller now, and whenever something about it changes.
    pub fn watch(&self, poller: &Arc<Poller>, key: usize) {
        let watch = Watch::new(poller, key);
        self.shared.locked().watch = Some(Arc::clone(&watch));
        watch.changed();
    }

    /// Whether its control connection lives in a lane.
    pub fn lives_in(&self, lane: &Lane) -> bool {
        Arc::ptr_eq(&self.shared.driver, lane.driver())
    }

    /// Whether memory can be passed to the other side. On one host it takes a moment after
    /// connecting until it can.
    pub fn shares_memory(&self) -> bool {
        self.shared.locked().shares_memory()
    }

    /// Why the connection ended, if it did.
    pub fn ended(&self) -> Option<PairEnd> {
        self.shared.locked().ended()
    }

    /// Closes the connection, after what was sent before has left, or five seconds. What has
    /// arrived can still be received.
    pub fn close(&self) {
        self.start_close();
        let mut wait = Wait {
            deadline: Some(Instant::now() + LINGER),
            interrupted: None,
        };
        let _ = self
            .shared
            .wait(&mut wait, |inner| inner.is_closed().then_some(Ok(())));
    }

    /// Begins to close the connection, without waiting.
    pub fn start_close(&self) {
        self.shared.with(|inner| inner.end(PairEnd::Goodbye, true));
    }

    /// Asks the other side to say that it is there: [`Stats`] tell when it was heard last.
    pub fn probe(&self) {
        self.shared.handle(Event::Probe);
    }

    /// Whether the connection is closed, and everything that was sent before has left.
    pub fn is_closed(&self) -> bool {
        self.shared.locked().is_closed()
    }

    /// Counts about the connection.
    pub fn stats(&self) -> Stats {
        let pair = self.shared.locked().stats();
        Stats {
            pair,
            bytes_sent: self.shared.bytes_sent.load(Ordering::Relaxed),
            bytes_received: self.shared.bytes_received.load(Ordering::Relaxed),
            bytes_shared: self.shared.bytes_shared.load(Ordering::Relaxed),
        }
    }
}

/// Counts about a connection. Bytes are those of objects, without headers.
#[derive(Clone, Copy, Debug)]
pub struct Stats {
    /// Of the state machine.
    pub pair: treadle_transfer::Stats,
    /// Bytes written to sockets.
    pub bytes_sent: u64,
    /// Bytes read from sockets.
    pub bytes_received: u64,
    /// Bytes passed as shared memory, in both directions.
    pub bytes_shared: u64,
}
