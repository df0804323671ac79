//! The connection of a process to the master, and the shuffle plane of the process.

mod callbacks;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_memory::{Pool, Segments};
use treadle_net::{Address, ClusterId, Lane, NetError, Options, Peer, Wait};
use treadle_reactor::thread::{self, caught, lock};
use treadle_shuffle::{AttemptId, Config, Generation, Tally, Tenant, ToMaster};
use treadle_shuffle_node::{Failure, Plane};
use treadle_shuffle_wire::decode_shuffled;
use treadle_types::{Runs, WorkerId};

use crate::observer::{Observed, Observer};
use crate::protocol::Protocol;
use crate::wire::{self, Answer, Call, Hello, Met, Register, Room, Welcome, What, flat, runs};
use crate::{SERVICE, ServiceError, config};

use callbacks::MemberCallbacks;

/// How often who waits asks whether it is interrupted.
const POLL: Duration = Duration::from_millis(25);
/// The longest wait of the thread that hears the master.
const LOOK: Duration = Duration::from_secs(5);
/// How long freed memory is kept for what comes next.
const KEPT: Duration = Duration::from_secs(10);

/// How a process becomes a member.
#[derive(Clone, Debug)]
pub struct MemberOptions {
    pub master: Address,
    /// Security of the connections.
    pub net: Options,
    /// For people.
    pub name: String,
    /// Whose shuffles it registers, and how much they count at servers that are overloaded. Members of one
    /// application keep its shuffles together.
    pub tenant: Tenant,
}

/// How a member holds partitions.
#[derive(Clone, Debug)]
pub(crate) struct Holding {
    pub(crate) address: String,
    pub(crate) domain: String,
    pub(crate) weight: u32,
    pub(crate) room: Room,
}

/// What the master knows of a shuffle.
#[derive(Clone, PartialEq, Debug)]
pub struct About {
    /// For people.
    pub name: String,
    /// How many inputs it has.
    pub maps: u32,
    /// How many partitions it has.
    pub partitions: u32,
    /// At how many servers each row is.
    pub copies: u32,
    /// What was said of it when it was registered.
    pub note: Bytes,
    /// Partitions that somebody reads. Empty: all.
    pub outputs: Runs,
    /// Maps whose rows are lost.
    pub again: Runs,
    /// A map has returned other rows than before, and nothing was committed since: what was read must be
    /// read again.
    pub differs: bool,
    /// The generation in which all began anew, since a map returned other rows. What was read of an earlier
    /// one must be read again. 0: none.
    pub restarted: Generation,
    /// The generation that was committed last. 0: none. `None`: the master is of a release that does not say it.
    pub committed: Option<Generation>,
}

/// A process that is connected to the master. Dropping it ends it.
#[derive(Debug)]
pub struct Member(Arc<Shared>);

pub(crate) struct Shared {
    id: WorkerId,
    name: String,
    master: Address,
    peer: Peer,
    plane: OnceLock<Plane>,
    observed: Observed,
    /// Messages for the master that are not sent.
    outbox: Mutex<Vec<ToMaster>>,
    /// Held while they are sent, so that they stay in order.
    sending: Mutex<()>,
    calls: Mutex<HashMap<u64, Option<Answer>>>,
    last_call: AtomicU64,
    last_attempt: AtomicU32,
    /// Why it is over, if it is.
    over: Mutex<Option<String>>,
    is_drained: Mutex<bool>,
    /// Held by who changes something that others wait for.
    changing: Mutex<()>,
    changed: Condvar,
}

impl Member {
    /// Connects a process that writes and reads, and holds nothing.
    ///
    /// # Errors
    /// When the master cannot be reached, or refuses it.
    pub fn connect(options: MemberOptions, wait: &mut Wait<'_>) -> Result<Self, ServiceError> {
        // Without a descriptor for each push: what a server keeps is in memory of its own.
        let net = Options {
            shared_memory: false,
            ..options.net.clone()
        };
        let files = treadle_volume::Options::new(vec![std::env::temp_dir()], 0);
        Self::join(options, net, None, files, config(), wait, |_| ())
    }

    pub(crate) fn join(
        options: MemberOptions,
        net: Options,
        holding: Option<Holding>,
        files: treadle_volume::Options,
        config: Config,
        wait: &mut Wait<'_>,
        found: impl FnOnce(Option<ClusterId>),
    ) -> Result<Self, ServiceError> {
        // The thread that hears the master moves nothing but its messages: rows of others are moved by
        // those that handle them, without a hand-over.
        let to_master = Options {
            lane: Some(Lane::attended()?),
            shared_memory: false,
            service: SERVICE,
            ..options.net.clone()
        };
        let peer = Peer::connect(&options.master, &to_master, wait)?;
        found(peer.cluster());
        let hello = hello(&options, holding);
        let address = hello.address.clone();
        wire::send(&peer, wire::HELLO, &hello);
        let object = peer.next(wait)?;
        let object = wire::accept(&peer, object, wire::LONGEST)?;
        let object =
            object.ok_or_else(|| ServiceError::Refused("its answer is too long".into()))?;
        object.wait(wait)?;
        let (kind, bytes) = wire::take(object)?;
        let welcome = wire::decode::<Welcome>(&bytes).ok();
        let welcome = welcome.filter(|_| kind == wire::WELCOME);
        let Some(welcome) = welcome else {
            let text = format!("{} is no shuffle master", options.master);
            return Err(ServiceError::Refused(text));
        };
        if !welcome.refused.is_empty() {
            let text = format!(
                "the shuffle master refuses this process: {}",
                welcome.refused
            );
            return Err(ServiceError::Refused(text));
        }
        let ours = Protocol::ours();
        if !(ours.oldest..=ours.newest).contains(&welcome.protocol) {
            let text = format!(
                "the shuffle master answers in protocol {} of the service, and this process speaks {ours}: \
                 upgrade the older one",
                welcome.protocol
            );
            return Err(ServiceError::Refused(text));
        }
        let id = WorkerId(welcome.id);
        let shared = Arc::new(Shared {
            id,
            name: options.name,
            master: options.master,
            peer: peer.clone(),
            plane: OnceLock::new(),
            observed: Observed::default(),
            outbox: Mutex::default(),
            sending: Mutex::default(),
            calls: Mutex::default(),
            last_call: AtomicU64::new(0),
            last_attempt: AtomicU32::new(0),
            over: Mutex::default(),
            is_drained: Mutex::new(false),
            changing: Mutex::default(),
            changed: Condvar::new(),
        });
        let mut net = Options {
            cluster: peer.cluster(),
            ..net
        };
        // What the master takes for a silence is one everywhere. Releases before do not say it.
        if welcome.timeout_ms > 0 {
            let timeout = Duration::from_millis(welcome.timeout_ms);
            (net.pair.timeout, net.patience) = (timeout, timeout);
        }
        let words = Box::new(MemberCallbacks(Arc::downgrade(&shared)));
        let plane = Plane::new(id, options.tenant, &address, net, files, config, words);
        let _ = shared.plane.set(plane);
        let hearing = Arc::clone(&shared);
        let started = thread::start("treadle-member", move || {
            let reason = match caught(|| hearing.hear_master()) {
                Ok(error) => format!("the shuffle master at {} is gone: {error}", hearing.master),
                Err(panic) => panic.to_string(),
            };
            hearing.end(&reason);
        });
        let member = Self(shared);
        started.map_err(|source| ServiceError::System {
            what: "starting a thread",
            source,
        })?;
        Ok(member)
    }

    /// Its number.
    pub fn id(&self) -> WorkerId {
        self.0.id
    }

    /// The shuffle plane of the process.
    pub fn plane(&self) -> &Plane {
        self.0.plane()
    }

    /// Has `observer` record what this member does. Only the first one counts.
    pub fn observe(&self, observer: Box<dyn Observer>) {
        self.0.observed.observe(observer);
    }

    /// A number for one run of a map, unique in the service.
    pub fn attempt(&self) -> AttemptId {
        let last = self.0.last_attempt.fetch_add(1, Ordering::Relaxed);
        AttemptId(u64::from(self.0.id.0) << 32 | u64::from(last))
    }

    /// Registers a shuffle. Returns its number, and in how many failure domains there are servers.
    ///
    /// `committed`: what an earlier shuffle of the same maps had, if its outputs are used still. If this one
    /// has other rows, its maps are not deterministic, and run again with all that was read.
    ///
    /// # Errors
    /// When the master refuses it, is gone, or does not answer before `interrupted` says so.
    pub fn register(
        &self,
        about: &About,
        committed: Option<Tally>,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<(u64, u32), ServiceError> {
        let register = Register {
            name: about.name.clone(),
            maps: about.maps,
            partitions: about.partitions,
            copies: about.copies,
            note: about.note.clone(),
            outputs: flat(&about.outputs),
            committed: committed.map(Into::into),
        };
        let answer = self.0.call(What::Register(register), interrupted)?;
        self.0.observed.named(answer.shuffle, &about.name);
        Ok((answer.shuffle, answer.domains))
    }

    /// Says that nobody will read a shuffle any more. Returns what it had, if it was committed.
    ///
    /// # Errors
    /// As for [`Member::register`].
    pub fn finish(
        &self,
        shuffle: u64,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Tally>, ServiceError> {
        let answer = self.0.call(What::End(shuffle), interrupted)?;
        Ok(answer.committed.map(Into::into))
    }

    /// What the master knows of a shuffle.
    ///
    /// # Errors
    /// As for [`Member::register`].
    pub fn about(
        &self,
        shuffle: u64,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<About, ServiceError> {
        let answer = self.0.call(What::About(shuffle), interrupted)?;
        let about = answer.about.unwrap_or_default();
        self.0.observed.named(shuffle, &about.name);
        Ok(About {
            name: about.name,
            maps: about.maps,
            partitions: about.partitions,
            copies: about.copies,
            note: about.note,
            outputs: runs(&about.outputs).unwrap_or_default(),
            again: runs(&answer.again).unwrap_or_default(),
            differs: answer.differs,
            restarted: Generation(answer.restarted),
            committed: answer.last_committed.map(Generation),
        })
    }

    /// Servers and shuffles, as JSON.
    ///
    /// # Errors
    /// As for [`Member::register`].
    pub fn state(&self, interrupted: &mut dyn FnMut() -> bool) -> Result<String, ServiceError> {
        Ok(self.0.call(What::State(true), interrupted)?.text)
    }

    /// Records of the shuffles that run and of the latest that have ended, as JSON.
    ///
    /// # Errors
    /// As for [`Member::register`].
    pub fn records(&self, interrupted: &mut dyn FnMut() -> bool) -> Result<String, ServiceError> {
        Ok(self.0.call(What::Records(true), interrupted)?.text)
    }

    /// Asks a server to leave: what it holds is copied elsewhere. Without a name, this process.
    ///
    /// # Errors
    /// As for [`Member::register`].
    pub fn drain(
        &self,
        name: &str,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<(), ServiceError> {
        self.0.call(What::Drain(name.into()), interrupted).map(drop)
    }

    /// Whether it was asked to leave, and holds nothing any more.
    pub fn is_drained(&self) -> bool {
        *lock(&self.0.is_drained)
    }

    /// Why it is over, if it is.
    pub fn over(&self) -> Option<String> {
        lock(&self.0.over).clone()
    }

    /// Waits until it is over. `None`: the time has passed.
    pub fn wait(&self, most: Duration) -> Option<String> {
        let until = Instant::now() + most;
        let mut is_over = || lock(&self.0.over).is_some();
        while !is_over() && Instant::now() < until {
            self.0.wait(&mut is_over, until);
        }
        self.over()
    }

    /// Ends it.
    pub fn close(&self) {
        self.0.end("this process has left the shuffle service");
        self.0.peer.close();
    }

    /// What a failure of the plane means here.
    ///
    /// # Errors
    /// The member is over, and this says why.
    pub fn explain(&self, failure: Failure) -> Result<Failure, ServiceError> {
        match (self.over(), failure) {
            (Some(reason), Failure::Again(_) | Failure::Interrupted) => {
                Err(ServiceError::Over(reason))
            }
            (_, failure) => Ok(failure),
        }
    }

    pub(crate) fn shared(&self) -> Weak<Shared> {
        Arc::downgrade(&self.0)
    }
}

/// How a process says who it is.
fn hello(options: &MemberOptions, holding: Option<Holding>) -> Hello {
    let ours = Protocol::ours();
    let hello = Hello {
        name: options.name.clone(),
        application: options.tenant.application.0,
        priority: options.tenant.priority,
        version: env!("CARGO_PKG_VERSION").into(),
        newest: ours.newest,
        oldest: ours.oldest,
        ..Hello::default()
    };
    match holding {
        None => hello,
        Some(held) => Hello {
            address: held.address,
            domain: held.domain,
            weight: held.weight,
            room: Some(held.room),
            ..hello
        },
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.0.end("this process has left the shuffle service");
        self.0.peer.start_close();
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Member({} of {})", self.name, self.master)
    }
}

impl Shared {
    fn plane(&self) -> &Plane {
        self.plane
            .get()
            .expect("it is set before anybody has a member")
    }

    pub(crate) fn is_over(&self) -> bool {
        lock(&self.over).is_some()
    }

    /// Why it cannot go on. What was said first counts.
    pub(crate) fn end(&self, reason: &str) {
        {
            let mut over = lock(&self.over);
            if over.is_some() {
                return;
            }
            *over = Some(reason.into());
        }
        if let Some(plane) = self.plane.get() {
            plane.end();
        }
        self.peer.start_close();
        self.notify();
    }

    /// Tells the master what room there is.
    pub(crate) fn announce(&self, room: &Room) {
        wire::send(&self.peer, wire::ROOM, room);
    }

    fn notify(&self) {
        drop(lock(&self.changing));
        self.changed.notify_all();
    }

    fn wait(&self, is_changed: &mut dyn FnMut() -> bool, until: Instant) {
        let mut changing = lock(&self.changing);
        while !is_changed() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.changed.wait_timeout(changing, left);
            changing = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn call(
        &self,
        what: What,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Answer, ServiceError> {
        let number = self.last_call.fetch_add(1, Ordering::Relaxed);
        lock(&self.calls).insert(number, None);
        let what = Some(what);
        wire::send(&self.peer, wire::CALL, &Call { number, what });
        let answer = loop {
            if let Some(reason) = lock(&self.over).clone() {
                break Err(ServiceError::Over(reason));
            }
            if let Some(answer) = lock(&self.calls).get_mut(&number).and_then(Option::take) {
                break Ok(answer);
            }
            if interrupted() {
                break Err(ServiceError::Late);
            }
            let mut is_changed = || {
                let is_answered = lock(&self.calls).get(&number).is_some_and(Option::is_some);
                is_answered || lock(&self.over).is_some()
            };
            self.wait(&mut is_changed, Instant::now() + POLL);
        };
        lock(&self.calls).remove(&number);
        let answer = answer?;
        match answer.refused.is_empty() {
            true => Ok(answer),
            false => Err(ServiceError::Refused(answer.refused)),
        }
    }

    /// Hears the master until the connection ends. Returns why.
    fn hear_master(&self) -> NetError {
        let mut looked = Instant::now();
        loop {
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                Pool::global().expire(KEPT);
                Segments::global().expire(KEPT);
            }
            let mut is_over = || lock(&self.over).is_some();
            let mut wait = Wait {
                deadline: Some(Instant::now() + LOOK),
                interrupted: Some(&mut is_over),
            };
            let object = match self.peer.next(&mut wait) {
                Ok(object) => object,
                Err(error) if self.peer.ended().is_some() || is_over() => return error,
                // Nothing was said for a while.
                Err(_) => continue,
            };
            let message =
                wire::accept(&self.peer, object, wire::LONGEST).and_then(|object| match object {
                    Some(object) => {
                        object.wait(&mut Wait {
                            deadline: None,
                            interrupted: Some(&mut is_over),
                        })?;
                        wire::take(object).map(Some)
                    }
                    None => Ok(None),
                });
            match message {
                Ok(Some((kind, bytes))) => self.hear(kind, &bytes),
                Ok(None) => {}
                Err(error) => return error,
            }
        }
    }

    fn hear(&self, kind: u32, bytes: &Bytes) {
        let met = || wire::decode::<Met>(bytes).ok();
        match kind {
            wire::TO_NODE => match decode_shuffled(bytes) {
                Ok(message) => self.plane().hear(message),
                Err(error) => self.end(&format!("the shuffle master broke the protocol: {error}")),
            },
            wire::MET => {
                if let Some(met) = met() {
                    self.plane().met(WorkerId(met.id), met.address);
                }
            }
            wire::LOST => {
                if let Some(met) = met() {
                    self.plane().lost(WorkerId(met.id));
                }
            }
            wire::ANSWER => match wire::decode::<Answer>(bytes) {
                Ok(answer) => {
                    if let Some(place) = lock(&self.calls).get_mut(&answer.number) {
                        *place = Some(answer);
                    }
                    self.notify();
                }
                Err(error) => self.end(&format!("the shuffle master broke the protocol: {error}")),
            },
            wire::DRAINED => {
                *lock(&self.is_drained) = true;
                self.notify();
            }
            _ => {}
        }
    }
}
