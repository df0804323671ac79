//! A process that writes and reads, as Python sees it.

use super::super::security::Credentials;
use super::super::worker::Worker;
use super::shuffle::ServiceShuffle;
use super::{CONNECT, address, interruptible, raised, stats};
use bytes::Bytes;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use treadle_interpreter::{ProcessLocal, refuse_forked};
use treadle_memory::Registration;
use treadle_net::Wait;
use treadle_node_worker::Tracing;
use treadle_reactor::thread::lock;
use treadle_shuffle::{ApplicationId, Generation, Tally, Tenant};
use treadle_shuffle_client::RawShuffle;
use treadle_shuffle_node::Done;
use treadle_shuffle_service::{About, Member, MemberOptions, Observer};
use treadle_types::Runs;

/// What the master knows of a shuffle: [`About`].
#[pyclass(frozen, get_all, module = "treadle._core")]
pub(crate) struct ShuffleAbout {
    name: String,
    maps: u32,
    partitions: u32,
    note: Py<PyBytes>,
    /// The generation that was committed last; 0: none. Masters of releases before do not say it.
    committed: Option<u32>,
}

/// A process that writes and reads.
#[pyclass(frozen, module = "treadle._core")]
pub(crate) struct ShuffleMember(ProcessLocal<Inner>);

struct Inner {
    member: Arc<Member>,
    /// Its place in the ledger of a worker's memory.
    charged: Mutex<Option<Registration>>,
}

#[pymethods]
impl ShuffleMember {
    #[new]
    #[pyo3(signature = (master, *, name, application, priority=1, secret=None, certificates=None,
                        insecure=false, timeout=None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments")]
    fn new(
        py: Python<'_>,
        master: &str,
        name: String,
        application: u64,
        priority: u32,
        secret: Option<&Bound<'_, PyAny>>,
        certificates: Option<HashMap<String, String>>,
        insecure: bool,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        refuse_forked()?;
        treadle_log::init();
        let credentials = Credentials {
            secret,
            certificates,
            insecure,
            contact: Vec::new(),
            cluster: None,
        };
        let net = credentials.options(CONNECT)?;
        let doing = format!("connecting to the shuffle master at {master}");
        let options = MemberOptions {
            master: address(master, &net)?,
            net,
            name,
            tenant: Tenant {
                application: ApplicationId(application),
                priority,
            },
        };
        let connected = interruptible(py, timeout, |interrupted| {
            let mut wait = Wait {
                deadline: None,
                interrupted: Some(interrupted),
            };
            Member::connect(options, &mut wait)
        })?;
        let connected = connected.map_err(|error| raised(error, &doing))?;
        Ok(Self(ProcessLocal::new(Inner {
            member: Arc::new(connected),
            charged: Mutex::default(),
        })))
    }

    /// Registers a shuffle: its number, and in how many failure domains there are servers.
    #[pyo3(signature = (name, maps, partitions, copies, note, timeout, outputs, committed, expected=0))]
    #[expect(clippy::too_many_arguments, reason = "as many are needed")]
    fn register(
        &self,
        py: Python<'_>,
        name: String,
        maps: u32,
        partitions: u32,
        copies: u32,
        note: Vec<u8>,
        timeout: Option<f64>,
        outputs: Vec<(u64, u64)>,
        committed: Option<(u64, u64, u64)>,
        expected: u64,
    ) -> PyResult<(u64, u32)> {
        let doing = format!("registering the shuffle {name}");
        let outputs = Runs::from_ranges(outputs);
        let outputs =
            outputs.ok_or_else(|| PyValueError::new_err("outputs have to be ascending ranges"))?;
        let about = About {
            name,
            maps,
            partitions,
            copies,
            expected,
            note: Bytes::from(note),
            outputs,
            again: Default::default(),
            differs: false,
            restarted: Generation(0),
            committed: None,
        };
        let committed = committed.map(|(rows, bytes, digest)| Tally {
            rows,
            bytes,
            digest,
        });
        let member = self.member()?;
        let registered = interruptible(py, timeout, |it| member.register(&about, committed, it))?;
        registered.map_err(|error| raised(error, &doing))
    }

    /// What the master knows of a shuffle.
    fn about(&self, py: Python<'_>, shuffle: u64, timeout: Option<f64>) -> PyResult<ShuffleAbout> {
        let member = self.member()?;
        let about = interruptible(py, timeout, |it| member.about(shuffle, it))?;
        let about = about.map_err(|error| raised(error, &format!("shuffle {shuffle}")))?;
        Ok(ShuffleAbout {
            note: PyBytes::new(py, &about.note).unbind(),
            name: about.name,
            maps: about.maps,
            partitions: about.partitions,
            committed: about.committed.map(|committed| committed.0),
        })
    }

    /// Says that nobody will read a shuffle any more. Returns the rows, bytes and digest that it had, if it was
    /// committed.
    fn finish(
        &self,
        py: Python<'_>,
        shuffle: u64,
        timeout: Option<f64>,
    ) -> PyResult<Option<(u64, u64, u64)>> {
        let member = self.member()?;
        let finished = interruptible(py, timeout, |it| member.finish(shuffle, it))?;
        let finished = finished.map(|had| had.map(|had| (had.rows, had.bytes, had.digest)));
        finished.map_err(|error| raised(error, &format!("ending shuffle {shuffle}")))
    }

    /// Servers and shuffles, as JSON.
    fn state(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<String> {
        let member = self.member()?;
        let state = interruptible(py, timeout, |it| member.state(it))?;
        state.map_err(|error| raised(error, "asking the shuffle master"))
    }

    /// Records of shuffles that run, and of the latest that have ended, as JSON.
    fn records(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<String> {
        let member = self.member()?;
        let records = interruptible(py, timeout, |it| member.records(it))?;
        records.map_err(|error| raised(error, "asking the shuffle master"))
    }

    /// The number of its master: the upper half of the numbers of its shuffles.
    #[getter]
    fn master(&self) -> PyResult<u32> {
        Ok(self.0.get()?.member.id().incarnation)
    }

    /// Where the master is to which a shuffle belongs, if that is another one that has joined this one.
    fn master_of(
        &self,
        py: Python<'_>,
        shuffle: u64,
        timeout: Option<f64>,
    ) -> PyResult<Option<String>> {
        let member = self.member()?;
        let found = interruptible(py, timeout, |it| member.master_of(shuffle, it))?;
        found.map_err(|error| raised(error, &format!("shuffle {shuffle}")))
    }

    /// Asks the server of this name to leave.
    fn drain(&self, py: Python<'_>, name: &str, timeout: Option<f64>) -> PyResult<()> {
        let member = self.member()?;
        let asked = interruptible(py, timeout, |it| member.drain(name, it))?;
        asked.map_err(|error| raised(error, &format!("asking {name} to leave")))
    }

    /// The shuffle with this number, of which the master is this member's. `committed`: the generation that was
    /// committed last, as far as is known; 0: none.
    fn shuffle(
        &self,
        number: u64,
        name: &str,
        maps: u32,
        committed: u32,
    ) -> PyResult<ServiceShuffle> {
        let member = Arc::clone(&self.0.get()?.member);
        let shuffle = RawShuffle::new(Arc::clone(&member), number, name, maps);
        shuffle.committed(Generation(committed));
        Ok(ServiceShuffle::new(member, shuffle))
    }

    /// What it keeps counts as memory of a worker of this process, while it is connected. What it does is in
    /// this worker's trace.
    fn belong_to(&self, worker: PyRef<'_, Worker>) -> PyResult<()> {
        let inner = self.0.get()?;
        inner.member.observe(Box::new(Traced(worker.tracing()?)));
        let charged = worker.account("rows for shuffle servers", inner.member.plane())?;
        *lock(&inner.charged) = Some(charged);
        Ok(())
    }

    /// Why it is over, if it is.
    #[getter]
    fn over(&self) -> PyResult<Option<String>> {
        Ok(self.member()?.over())
    }

    /// Counts of its plane, by name.
    fn stats(&self, py: Python<'_>) -> PyResult<HashMap<&'static str, u64>> {
        Ok(stats(py, self.member()?.plane()))
    }

    /// Ends it. In a forked child this does nothing: it is the parent's.
    fn close(&self, py: Python<'_>) {
        if let Some(inner) = self.0.peek() {
            py.detach(|| {
                inner.member.close();
                lock(&inner.charged).take();
            });
        }
    }
}

/// The trace of a worker.
struct Traced(Arc<Tracing>);

impl Observer for Traced {
    fn is_traced(&self) -> bool {
        self.0.is_wanted()
    }

    fn traced(&self, done: Done, shuffle: String) {
        self.0.shuffled(done, shuffle);
    }
}

impl ShuffleMember {
    /// What connects to the service.
    ///
    /// # Errors
    /// In a forked child.
    fn member(&self) -> PyResult<&Member> {
        Ok(&self.0.get()?.member)
    }
}
