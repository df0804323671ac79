//! The connection of a process to the master, and the shuffle plane of the process.

mod callbacks;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_memory::{Pool, Segments};
use treadle_net::{Address, NetError, Options, Peer, Wait};
use treadle_reactor::thread::{self, caught, lock};
use treadle_shuffle::{AttemptId, Generation, ServerId, Tally, Tenant, ToMaster};
use treadle_shuffle_node::{Failure, Plane};
use treadle_shuffle_wire::decode_shuffled;
use treadle_types::Runs;

use crate::observer::{Observed, Observer};
use crate::protocol::Protocol;
use crate::servers::{Learn, ServerEntry};
use crate::wire::{self, Answer, Call, Claim, Met, Register, Servers, What, flat, runs};
use crate::{ServiceError, config, joining};

use callbacks::MemberCallbacks;

/// How often who waits asks whether it is interrupted.
const POLL: Duration = Duration::from_millis(25);
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
    /// How many bytes are expected to be pushed. 0: nobody knows.
    pub expected: u64,
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
    id: ServerId,
    name: String,
    master: Address,
    peer: Peer,
    plane: OnceLock<Plane>,
    observed: Observed,
    /// What the master takes for a silence.
    timeout: Duration,
    /// Messages for the master that are not sent.
    outbox: Mutex<Vec<ToMaster>>,
    /// Held while they are sent, so that they stay in order.
    sending: Mutex<()>,
    calls: Mutex<HashMap<u64, Option<Answer>>>,
    last_call: AtomicU64,
    last_attempt: AtomicU32,
    /// Why it is over, if it is.
    over: Mutex<Option<String>>,
    /// Takes the list of servers, if this process has asked for it.
    learn: OnceLock<Box<Learn>>,
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
        let mut net = Options {
            shared_memory: false,
            ..options.net.clone()
        };
        let files = treadle_volume::Options::new(vec![std::env::temp_dir()], 0);
        let tenant = options.tenant;
        let hello = joining::hello(&options.name, tenant.application.0, tenant.priority);
        let (peer, welcome) = joining::join(&options.master, &options.net, &hello, wait)?;
        let id = ServerId {
            node: welcome.id,
            incarnation: welcome.master,
        };
        let shared = Arc::new(Shared {
            id,
            name: options.name,
            master: options.master,
            peer: peer.clone(),
            plane: OnceLock::new(),
            observed: Observed::default(),
            timeout: Duration::from_millis(welcome.timeout_ms),
            outbox: Mutex::default(),
            sending: Mutex::default(),
            calls: Mutex::default(),
            last_call: AtomicU64::new(0),
            last_attempt: AtomicU32::new(0),
            over: Mutex::default(),
            learn: OnceLock::new(),
            changing: Mutex::default(),
            changed: Condvar::new(),
        });
        // What the master takes for a silence is one everywhere.
        let timeout = shared.timeout;
        (net.pair.timeout, net.patience) = (timeout, timeout);
        let words = Box::new(MemberCallbacks(Arc::downgrade(&shared)));
        let plane = Plane::new(id, tenant, "", net, files, config(), words);
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
        started.map_err(ServiceError::no_thread)?;
        Ok(member)
    }

    /// Its number.
    pub fn id(&self) -> ServerId {
        self.0.id
    }

    /// What the master takes for a silence.
    pub(crate) fn timeout(&self) -> Duration {
        self.0.timeout
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
        AttemptId(u64::from(self.0.id.node) << 32 | u64::from(last))
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
            expected: about.expected,
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
            expected: about.expected,
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

    /// Asks a server to leave: what it holds is copied elsewhere.
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

    /// Where the master with a number is, of which the upper half of this shuffle's number is one. `None`: it is
    /// not there.
    ///
    /// # Errors
    /// As for [`Member::register`].
    pub fn master_of(
        &self,
        shuffle: u64,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Option<String>, ServiceError> {
        let answer = self
            .0
            .call(What::Master((shuffle >> 32) as u32), interrupted)?;
        Ok(Some(answer.text).filter(|text| !text.is_empty()))
    }

    /// Says that a master of an application is there. Returns where the application has another one.
    ///
    /// # Errors
    /// As for [`Member::register`].
    pub(crate) fn claim(
        &self,
        claim: Claim,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Option<String>, ServiceError> {
        let answer = self.0.call(What::Claim(claim), interrupted)?;
        Ok(Some(answer.text).filter(|text| !text.is_empty()))
    }

    /// Hands over records of shuffles that have ended, as JSON.
    ///
    /// # Errors
    /// As for [`Member::register`].
    pub(crate) fn ended(
        &self,
        records: String,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<(), ServiceError> {
        self.0.call(What::Ended(records), interrupted).map(drop)
    }

    /// Has `learn` called with all servers, now and whenever they change.
    ///
    /// # Errors
    /// As for [`Member::register`].
    pub(crate) fn servers(
        &self,
        learn: Box<Learn>,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<(), ServiceError> {
        let _ = self.0.learn.set(learn);
        self.0.call(What::Servers(true), interrupted).map(drop)
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
        let mut look = || {
            Pool::global().expire(KEPT);
            Segments::global().expire(KEPT);
        };
        joining::attend(
            &self.peer,
            &mut || self.is_over(),
            &mut look,
            &mut |kind, bytes| self.hear(kind, bytes),
        )
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
                    let server = self.other(met.id);
                    self.plane().met(server, met.address);
                    if Protocol::ours().tells_together(met.protocol) {
                        self.plane().takes_together(server);
                    }
                }
            }
            wire::LOST => {
                if let Some(met) = met() {
                    self.plane().lost(self.other(met.id));
                }
            }
            wire::SERVERS => {
                if let Ok(Servers { servers }) = wire::decode(bytes)
                    && let Some(learn) = self.learn.get()
                {
                    learn(servers.into_iter().map(ServerEntry::from).collect());
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
            _ => {}
        }
    }

    /// Another process, as the master calls it.
    fn other(&self, node: u32) -> ServerId {
        ServerId { node, ..self.id }
    }
}
