//! `treadle._core.Connection`: the native end of a client.

mod casts;
mod counting;
mod deliver;
mod graph;
mod options;
mod shuffles;
mod states;
mod submit;
mod values;

use super::error::{ended, raised};
use super::security::Credentials;
use super::worker::{answer, plain};
use crate::transfer::{Limit, blocking, parse};
use pyo3::exceptions::{PyKeyError, PyRuntimeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use states::States;
use std::collections::{HashMap, VecDeque};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use treadle_interpreter::{ProcessLocal, lock, refuse_forked};
use treadle_messages::{Call, Hello, Role};
use treadle_net::{NetError, Wait};
use treadle_node_client::{ClientError, Lead};
use treadle_recipe::{self as recipe, Encoder, FunctionTokens};
use values::Fetch;
pub(crate) use values::Undecoded;

use casts::Asked;
pub(super) use casts::{buffer, encode_times};
pub(super) use counting::{count, finaliser};

/// A client whose states are Python's.
type Client = treadle_node_client::Client<Py<PyAny>>;

/// Things that one call of `process` applies at most.
const MOST: usize = 4096;

/// The native end of a client. Any number of threads may use it; nothing holds the interpreter's
/// lock while it waits.
#[pyclass(frozen, weakref, name = "Connection", module = "treadle._core")]
pub(crate) struct ClientConnection {
    client: ProcessLocal<Client>,
    address: String,
    encoder: Encoder,
    tokens: FunctionTokens,
    states: States,
    /// Locked for short, never while Python runs.
    callbacks: Mutex<Callbacks>,
}

/// Objects of Python that are called when something comes.
#[derive(Default)]
struct Callbacks {
    handlers: Option<Py<PyAny>>,
    /// By number of the question.
    calls: HashMap<u64, Py<PyAny>>,
    /// By ticket.
    fetches: HashMap<u64, Fetch>,
    /// Who wants to know what came of casts.
    casts: Option<Py<PyAny>>,
    /// What came of casts and was not delivered, or not to its end.
    came: VecDeque<Py<PyList>>,
    /// By number, calls that many were asked at once.
    asked: HashMap<u64, Asked>,
}

fn encoded(key: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let mut bytes = Vec::with_capacity(64);
    recipe::encode_key(key.as_borrowed(), &mut bytes)?;
    Ok(bytes)
}

/// Encoded keys, one behind the other.
struct EncodedKeys {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl EncodedKeys {
    fn new(keys: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut all = Self {
            bytes: Vec::new(),
            ends: Vec::new(),
        };
        for key in keys.try_iter()? {
            recipe::encode_key(key?.as_borrowed(), &mut all.bytes)?;
            all.ends.push(all.bytes.len());
        }
        Ok(all)
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.ends.iter().scan(0, |start, end| {
            let key = &self.bytes[*start..*end];
            *start = *end;
            Some(key)
        })
    }
}

impl ClientConnection {
    fn client(&self) -> PyResult<&Client> {
        self.client.get()
    }

    fn failed(&self) -> impl Fn(ClientError) -> PyErr {
        let doing = format!("talking to the scheduler at {}", self.address);
        move |error| client_error(error, &doing)
    }

    fn callbacks(&self) -> MutexGuard<'_, Callbacks> {
        lock(&self.callbacks)
    }
}

/// The exception for an error of the client; `doing` says what failed.
fn client_error(error: ClientError, doing: &str) -> PyErr {
    match error {
        ClientError::Node(error) => raised(error, doing),
        ClientError::Net(error) => crate::transfer::failed(doing)(error),
        ClientError::Ended { .. } => ended(error.to_string()),
        ClientError::Exhausted(_) => PyRuntimeError::new_err(error.to_string()),
    }
}

/// How a round of waiting went.
enum Round<'a> {
    /// This thread leads, and something has come.
    Mine(Lead<'a, Py<PyAny>>),
    /// Another thread has processed something.
    Others,
    TimedOut,
}

fn round<'a>(client: &'a Client, seen: u64, wait: &mut Wait<'_>) -> Result<Round<'a>, ClientError> {
    let led = client
        .lead(seen, wait)
        .map_err(ClientError::from)
        .and_then(|lead| match lead {
            Some(lead) => lead.receive(wait).map(|()| Round::Mine(lead)),
            None => Ok(Round::Others),
        });
    match led {
        Err(ClientError::Net(NetError::Timeout)) => Ok(Round::TimedOut),
        led => led,
    }
}

#[pymethods]
impl ClientConnection {
    /// Connects to the scheduler at `address` as `name`.
    #[new]
    #[pyo3(signature = (address, name, handlers, *, role="client", secret=None, certificates=None,
                        insecure=false, cluster=None, timeout=10.0, info=None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments")]
    fn new(
        py: Python<'_>,
        address: &str,
        name: String,
        handlers: Py<PyAny>,
        role: &str,
        secret: Option<&Bound<'_, PyAny>>,
        certificates: Option<HashMap<String, String>>,
        insecure: bool,
        cluster: Option<&str>,
        timeout: f64,
        info: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        refuse_forked()?;
        treadle_log::init();
        let role = match role {
            "client" => Role::Client,
            "sidecar" => Role::Sidecar,
            other => {
                return Err(PyValueError::new_err(format!(
                    "role={other:?}: write \"client\" or \"sidecar\""
                )));
            }
        };
        let python = py.version_info();
        let hello = Hello {
            role,
            name,
            python: format!("{}.{}", python.major, python.minor),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            info: info.map(plain).transpose()?.unwrap_or_default(),
        };
        let address = parse(address)?;
        let credentials = Credentials {
            secret,
            certificates,
            insecure,
            contact: Vec::new(),
            cluster,
        };
        let in_time = Duration::try_from_secs_f64(timeout)
            .map_err(|_| PyValueError::new_err(format!("timeout={timeout}: give seconds")))?;
        let options = credentials.options(in_time)?;
        let doing = format!("connecting to the scheduler at {address}");
        let limit = Limit::new(Some(timeout))?;
        let failed = |error| client_error(error, &doing);
        let client = blocking(py, limit, None, failed, |wait| {
            Client::connect(&address, &options, &hello, wait)
        })?;
        Ok(Self {
            address: client.address().to_owned(),
            client: ProcessLocal::new(client),
            encoder: Encoder::new(),
            tokens: FunctionTokens::default(),
            states: States::default(),
            callbacks: Mutex::new(Callbacks {
                handlers: Some(handlers),
                ..Callbacks::default()
            }),
        })
    }

    /// The scheduler's.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    /// The id of the cluster.
    #[getter]
    fn cluster(&self) -> PyResult<Option<String>> {
        Ok(self.client()?.cluster().map(|id| id.to_string()))
    }

    /// The number that the scheduler gave this client.
    #[getter]
    fn id(&self) -> PyResult<u32> {
        Ok(self.client()?.id())
    }

    /// What the scheduler says about itself.
    #[getter]
    fn info(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self.client()?.info() {
            nothing if nothing.is_empty() => Ok(py.None()),
            info => recipe::decode_value(py, info),
        }
    }

    /// Why the connection is over, if it is.
    #[getter]
    fn closed(&self) -> Option<&str> {
        match self.client.peek() {
            Some(client) => client.ended_reason(),
            None => Some("it belongs to the parent process"),
        }
    }

    /// A descriptor that is readable while there is something for `process`, and no thread waits.
    fn fileno(&self) -> PyResult<i32> {
        Ok(self.client()?.descriptor().as_raw_fd())
    }

    /// Applies what has come, without waiting. Returns how many things were applied; where that is
    /// much, some are left, and the descriptor stays readable.
    fn process(&self, py: Python<'_>) -> PyResult<usize> {
        let client = self.client()?;
        let Some(lead) = py.detach(|| client.process()) else {
            return Ok(0);
        };
        let delivered = self.deliver(py, &lead, MOST);
        py.detach(|| drop(lead));
        delivered
    }

    /// Waits until `done()`, which is asked after each round of processing; `False`: it is not so
    /// within `timeout` seconds.
    ///
    /// Raises
    /// ------
    /// ConnectionError
    ///     The connection is over, everything was processed, and it is not so.
    #[pyo3(signature = (done, timeout=None))]
    fn wait(
        &self,
        py: Python<'_>,
        done: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<bool> {
        /// `done` is asked this often where nothing comes: something else may make it so.
        const LOOK: Duration = Duration::from_millis(500);
        let client = self.client()?;
        let limit = Limit::new(timeout)?;
        loop {
            let seen = client.rounds();
            if done.call0()?.is_truthy()? {
                return Ok(true);
            }
            let look = Instant::now() + LOOK;
            let slice = Limit {
                deadline: Some(limit.deadline.map_or(look, |deadline| deadline.min(look))),
            };
            let round = blocking(py, slice, None, self.failed(), |wait| {
                round(client, seen, wait)
            })?;
            match round {
                Round::Mine(lead) => {
                    let delivered = self.deliver(py, &lead, MOST);
                    py.detach(|| drop(lead));
                    delivered?;
                }
                Round::Others => {}
                Round::TimedOut => {
                    let late = |deadline| Instant::now() >= deadline;
                    if limit.deadline.is_some_and(late) {
                        return done.call0()?.is_truthy();
                    }
                }
            }
        }
    }

    /// Lets other threads process what comes, if this one does: it is about to wait for what they bring.
    fn step_aside(&self, py: Python<'_>) -> PyResult<()> {
        let client = self.client()?;
        py.detach(|| client.step_aside());
        Ok(())
    }

    /// The client has futures of a key that somebody else makes.
    fn watch(&self, py: Python<'_>, key: &Bound<'_, PyAny>, state: Py<PyAny>) -> PyResult<()> {
        let key = encoded(key)?;
        let client = self.client()?;
        let before = py.detach(|| client.watch(&key, state));
        before.map(drop).map_err(self.failed())
    }

    /// The client has no futures of these keys any more. The scheduler is notified with the next message,
    /// or by `flush`.
    fn release(&self, keys: &Bound<'_, PyAny>) -> PyResult<()> {
        let client = self.client()?;
        for key in EncodedKeys::new(keys)?.iter() {
            drop(client.release(key));
        }
        Ok(())
    }

    /// Sends what waits for the next message.
    fn flush(&self) -> PyResult<()> {
        self.client()?.flush_now();
        Ok(())
    }

    /// The state of a key that the client has futures of.
    fn state(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Option<Py<PyAny>>> {
        let key = encoded(key)?;
        Ok(self.client()?.owner(&key, |state| state.clone_ref(py)))
    }

    /// How many large constants are kept, in case that the scheduler asks for them again, and their
    /// bytes.
    fn kept(&self, py: Python<'_>) -> PyResult<(usize, u64)> {
        let client = self.client()?;
        Ok(py.detach(|| client.kept()))
    }

    /// Cancels keys; with `force`, also where other clients want them.
    fn cancel(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        force: bool,
        reason: Option<&str>,
        message: Option<&str>,
    ) -> PyResult<()> {
        let keys = EncodedKeys::new(keys)?;
        let client = self.client()?;
        let why = plain((reason, message).into_pyobject(py)?.as_any())?;
        py.detach(|| client.cancel(keys.iter(), force, why))
            .map_err(self.failed())
    }

    /// Runs failed keys again.
    fn retry(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<()> {
        let keys = EncodedKeys::new(keys)?;
        let client = self.client()?;
        py.detach(|| client.retry(keys.iter()))
            .map_err(self.failed())
    }

    /// The value of a finished key that came along with the notice: a new object each time.
    fn value(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let encoded = encoded(key)?;
        match self.client()?.value(&encoded) {
            Some(value) => self.decode_small(py, &value),
            None => Err(PyKeyError::new_err(key.clone().unbind())),
        }
    }

    /// Puts the values of those keys that came along into `into`; returns the other keys.
    fn inline<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyList>,
        into: &Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyList>> {
        let client = self.client()?;
        let others = PyList::empty(py);
        for key in keys {
            match client.value(&encoded(&key)?) {
                Some(value) => into.set_item(key, self.decode_small(py, &value)?)?,
                None => others.append(key)?,
            }
        }
        Ok(others)
    }

    /// How often a value was lost that may be another one when it is made anew.
    fn losses(&self) -> PyResult<u32> {
        Ok(self.client()?.losses())
    }

    /// Those of the keys whose values were lost since there were so many losses.
    fn lost_since<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        losses: u32,
    ) -> PyResult<Bound<'py, PyList>> {
        let client = self.client()?;
        let lost = PyList::empty(py);
        for key in keys.try_iter()? {
            let key = key?;
            if client.is_lost_since(&encoded(&key)?, losses) {
                lost.append(key)?;
            }
        }
        Ok(lost)
    }

    /// Whether `value` has it.
    fn is_inline(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.client()?.value(&encoded(key)?).is_some())
    }

    /// Asks another node; `done(answer, error)` is called when it has answered.
    fn call(
        &self,
        py: Python<'_>,
        node: String,
        operation: String,
        argument: &Bound<'_, PyAny>,
        done: Py<PyAny>,
    ) -> PyResult<()> {
        let client = self.client()?;
        let argument = plain(argument)?;
        let id = client.new_number();
        // First: another thread may process the answer at once.
        self.callbacks().calls.insert(id, done);
        let call = Call {
            id,
            node,
            operation,
            argument,
        };
        let called = py.detach(|| client.call(call));
        called.map_err(|error| {
            drop(self.callbacks().calls.remove(&id));
            self.failed()(error)
        })
    }

    /// Answers a question that `on_call` was called with.
    #[pyo3(signature = (id, result, error=None))]
    fn answer(
        &self,
        py: Python<'_>,
        id: u64,
        result: &Bound<'_, PyAny>,
        error: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let client = self.client()?;
        let answer = answer(id, result, error)?;
        py.detach(|| client.answer(answer)).map_err(self.failed())
    }

    /// From now on `arrived` is called with a list of what came of casts, in the thread that
    /// processes: of each the number, the engines of which the same came, the kind, the frames, and
    /// when each of the engines began and ended, if they said so.
    fn on_casts(&self, arrived: Option<Py<PyAny>>) {
        let before = std::mem::replace(&mut self.callbacks().casts, arrived);
        drop(before);
    }

    /// Engines that have not begun these casts are not to; with `interrupt`, the others are
    /// interrupted.
    #[pyo3(signature = (numbers, interrupt=false))]
    fn abort(&self, py: Python<'_>, numbers: Vec<u64>, interrupt: bool) -> PyResult<()> {
        let client = self.client()?;
        py.detach(|| client.abort_casts(&numbers, interrupt));
        Ok(())
    }

    /// What was sent to engines so far: messages, bytes through sockets, bytes as shared memory; and
    /// what came from them: messages, and bytes.
    fn cast_traffic(&self, py: Python<'_>) -> PyResult<[u64; 5]> {
        let client = self.client()?;
        Ok(py.detach(|| client.cast_traffic()).into())
    }

    /// Says goodbye, and closes the connection when what was sent before has left, or after
    /// `timeout` seconds.
    #[pyo3(signature = (timeout=5.0))]
    fn close(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let Some(client) = self.client.peek() else {
            return Ok(());
        };
        let limit = Limit::new(Some(timeout))?;
        blocking(py, limit, None, self.failed(), |wait| {
            client.close(wait);
            Ok(())
        })?;
        // What was asked for will not come: everybody is notified.
        if let Some(lead) = client.try_lead() {
            let delivered = self.deliver(py, &lead, usize::MAX);
            py.detach(|| drop(lead));
            delivered?;
        }
        Ok(())
    }

    fn __repr__(&self) -> String {
        let state = match self.closed() {
            None => "open",
            Some(_) => "closed",
        };
        format!("<treadle._core.Connection to {}, {state}>", self.address)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Where another thread has it, it is in use.
        let Ok(callbacks) = self.callbacks.try_lock() else {
            return Ok(());
        };
        visit.call(&callbacks.handlers)?;
        visit.call(&callbacks.casts)?;
        for list in &callbacks.came {
            visit.call(list)?;
        }
        for done in callbacks.calls.values() {
            visit.call(done)?;
        }
        for asked in callbacks.asked.values() {
            asked.traverse(&visit)?;
        }
        for fetch in callbacks.fetches.values() {
            fetch.traverse(&visit)?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        let callbacks = match self.callbacks.try_lock() {
            Ok(mut held) => std::mem::take(&mut *held),
            Err(_) => return,
        };
        drop(callbacks);
    }
}

/// `None` and an empty mapping are the same.
fn non_empty<'a, 'py>(kwargs: Option<&'a Bound<'py, PyDict>>) -> Option<&'a Bound<'py, PyDict>> {
    kwargs.filter(|kwargs| !kwargs.is_empty())
}
