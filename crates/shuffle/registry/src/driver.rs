//! The thread around the machines, for registries that are other servers: a runtime of one thread, in which each
//! registration, each claim and each watch is a task with a session of its own.

mod claim;
mod register;
mod runtime;
mod watch;

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::entry::{Entry, Key};
use crate::error::RegistryError;
use crate::location::Location;
use crate::machines::{Config, Failure};
use crate::master::Master;
use crate::registry::{Claim, Registration, Registry, Watch};
use runtime::Runtime;

/// A node as a registry has it.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Node {
    /// The parts of its path below ours: `name/incarnation`, if it is an entry.
    pub(crate) path: String,
    /// Its bytes, or why there are none.
    pub(crate) bytes: Result<Vec<u8>, String>,
}

/// What a session notices.
#[derive(Debug)]
pub(crate) enum Change {
    /// A node is new or has changed.
    Put(Node),
    /// The node with this path is gone.
    Gone(String),
    /// Changes may be missed from now on.
    Interrupted(String),
    /// The session goes on.
    Resumed,
    Ended(String),
}

/// A session with a registry. What is dropped before it ends can be lost, but for `next`.
pub(crate) trait Session: Sized + 'static {
    /// What a session is begun with.
    type Target: Send + Sync + 'static;

    async fn connect(target: &Self::Target) -> Result<Self, Failure>;
    /// All nodes; [`Session::next`] has each change from there.
    async fn read(&mut self) -> Result<Vec<Node>, Failure>;
    /// The nodes of one name.
    async fn rivals(&mut self, name: &str) -> Result<Vec<Node>, Failure>;
    /// Writes a node that goes when the session ends.
    async fn write(&mut self, key: &Key, bytes: Vec<u8>) -> Result<(), Failure>;
    /// Removes a node, if it is there.
    async fn remove(&mut self, key: &Key) -> Result<(), Failure>;
    /// Writes the node of a master, which goes when the session ends, unless there is another master: returns the
    /// bytes of that.
    async fn claim(&mut self, path: &str, bytes: &[u8]) -> Result<Option<Vec<u8>>, Failure>;
    /// The nodes of all masters.
    async fn masters(&mut self) -> Result<Vec<Node>, Failure>;
    async fn next(&mut self) -> Change;
    /// Ends it, so that the registry notices at once.
    async fn close(self);
}

/// A registry that is another server.
pub(crate) struct Driven<S: Session> {
    location: String,
    target: Arc<S::Target>,
    config: Config,
    runtime: Arc<Runtime>,
}

impl<S: Session> Driven<S> {
    pub(crate) fn open(
        location: &Location,
        target: S::Target,
        config: &Config,
    ) -> Result<Box<dyn Registry>, RegistryError> {
        Ok(Box::new(Self {
            location: location.to_string(),
            target: Arc::new(target),
            config: config.clone(),
            runtime: Runtime::start()?,
        }))
    }
}

impl<S: Session> Registry for Driven<S> {
    fn register(&self, entry: Entry) -> Result<Box<dyn Registration>, RegistryError> {
        let (target, config) = (self.target.clone(), self.config.clone());
        register::start::<S>(&self.runtime, self.location.clone(), entry, target, config)
    }

    fn watch(&self) -> Result<Box<dyn Watch>, RegistryError> {
        let (target, config) = (self.target.clone(), self.config.clone());
        watch::start::<S>(&self.runtime, self.location.clone(), target, config)
    }

    fn claim(&self, master: Master) -> Result<Option<Box<dyn Claim>>, RegistryError> {
        let (target, config) = (self.target.clone(), self.config.clone());
        claim::start::<S>(&self.runtime, self.location.clone(), master, target, config).map(Some)
    }

    fn masters(&self, timeout: Duration) -> Result<Vec<Master>, RegistryError> {
        claim::masters::<S>(&self.runtime, &self.location, self.target.clone(), timeout)
    }

    fn location(&self) -> String {
        self.location.clone()
    }
}

/// The sessions of a registration or of a claim.
struct Sessions<S> {
    now: Option<S>,
    /// One that was given up, and has the node still: it ends when the node is another one's.
    before: Option<S>,
}

impl<S> Default for Sessions<S> {
    fn default() -> Self {
        Self {
            now: None,
            before: None,
        }
    }
}

impl<S: Session> Sessions<S> {
    fn put_aside(&mut self) {
        if let Some(session) = self.now.take() {
            self.before.get_or_insert(session);
        }
    }

    async fn close(&mut self, limit: Duration) {
        close(&mut self.now, limit).await;
        close(&mut self.before, limit).await;
    }
}

/// Ends a session, if there is one.
async fn close<S: Session>(session: &mut Option<S>, limit: Duration) {
    if let Some(session) = session.take() {
        let _ = tokio::time::timeout(limit, session.close()).await;
    }
}

/// What the handle of a task knows of it.
trait Withdrawing {
    type Standing: Clone + PartialEq;

    fn standing(&self) -> &Self::Standing;
    /// It is to end.
    fn withdraw(&mut self);
    fn has_withdrawn(&self) -> bool;
}

/// Who holds it has the task go on.
struct Handle<T: Withdrawing> {
    shared: Arc<Shared<T>>,
    location: String,
    /// The thread lives as long as this.
    _runtime: Arc<Runtime>,
}

impl<T: Withdrawing> Handle<T> {
    /// Tells the task something.
    fn tell(&self, change: impl FnOnce(&mut T)) {
        change(&mut self.shared.lock());
        self.shared.wake.notify_one();
    }

    fn now(&self) -> T::Standing {
        self.shared.lock().standing().clone()
    }

    fn wait_for_another(&self, known: &T::Standing, timeout: Duration) -> T::Standing {
        let is_known = |state: &mut T| state.standing() == known;
        let state = self.shared.wait_while(timeout, is_known);
        state.standing().clone()
    }

    fn end(&self, timeout: Duration) -> Result<(), RegistryError> {
        self.tell(T::withdraw);
        let goes_on = |state: &mut T| !state.has_withdrawn();
        match self.shared.wait_while(timeout, goes_on).has_withdrawn() {
            true => Ok(()),
            false => Err(RegistryError::Late {
                location: self.location.clone(),
            }),
        }
    }
}

impl<T: Withdrawing> Drop for Handle<T> {
    fn drop(&mut self) {
        self.tell(T::withdraw);
    }
}

/// What a task shares with who holds its handle.
struct Shared<T> {
    state: Mutex<T>,
    /// The state has changed, for the handle.
    changed: Condvar,
    /// It has changed, for the task.
    wake: Notify,
    started: Instant,
}

impl<T> Shared<T> {
    fn new(state: T) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            wake: Notify::new(),
            started: Instant::now(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits as long as a condition holds, for at most `timeout`.
    fn wait_while(
        &self,
        timeout: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'_, T> {
        let wait = self
            .changed
            .wait_timeout_while(self.lock(), timeout, condition);
        wait.unwrap_or_else(PoisonError::into_inner).0
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Sleeps until a machine's deadline.
    async fn sleep(&self, deadline: Option<Duration>) {
        match deadline {
            Some(at) => tokio::time::sleep(at.saturating_sub(self.now())).await,
            None => std::future::pending().await,
        }
    }
}

/// Ends what a registry does not answer in time.
async fn limited<T>(
    location: &str,
    limit: Duration,
    answer: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(limit, answer).await {
        Ok(answer) => answer.map_err(|failure| Failure {
            why: format!("{location}: {}", failure.why),
            ..failure
        }),
        Err(_) => Err(Failure {
            why: format!(
                "{location} has not answered within {} s",
                limit.as_secs_f32()
            ),
            is_refusal: false,
        }),
    }
}

/// What a session notices next; nothing where there is none.
async fn next<S: Session>(session: &mut Option<S>) -> Change {
    match session {
        Some(session) => session.next().await,
        None => std::future::pending().await,
    }
}

/// The key of a path below ours.
fn key_of(path: &str) -> Option<Key> {
    let (name, incarnation) = path.split_once('/')?;
    Key::of_path(name, incarnation)
}

/// The entry of a node, or why it is none.
fn entry_of(node: Node) -> Result<Arc<Entry>, (String, String)> {
    let failed = |why: String| (node.path.clone(), why);
    let bytes = node.bytes.as_ref().map_err(|why| failed(why.clone()))?;
    let key = key_of(&node.path).ok_or_else(|| failed("its path is no server's".into()))?;
    let entry = key
        .decode(bytes)
        .map_err(|error| failed(error.to_string()))?;
    Ok(Arc::new(entry))
}

/// A number that differs between tasks and processes.
fn seed() -> u64 {
    RandomState::new().hash_one(0)
}
