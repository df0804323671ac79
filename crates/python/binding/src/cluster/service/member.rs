//! A process that writes and reads, as Python sees it.

use super::super::security::Credentials;
use super::super::worker::Worker;
use super::super::worker::shuffles::{Piece, Waiting, joined};
use super::{CONNECT, ShuffleError, address, interruptible, raised, stats};
use crate::rows::Rows;
use bytes::Bytes;
use pyo3::exceptions::{PyConnectionError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use treadle_compress::Codec;
use treadle_interpreter::{ProcessLocal, refuse_forked};
use treadle_memory::Registration;
use treadle_net::Wait;
use treadle_node_worker::Tracing;
use treadle_reactor::thread::lock;
use treadle_shuffle::{
    ApplicationId, Commit, Generation, MapRange, Receipt, ShuffleId, Tally, Tenant, Transfer,
};
use treadle_shuffle_node::{Done, Failure, Packed, Plane, Source};
use treadle_shuffle_service::{About, Member, MemberOptions, Observer};
use treadle_shuffle_wire::{decode_shuffled, encode_shuffled};
use treadle_types::Runs;

pyo3::import_exception!(distributed.exceptions, Reschedule);
pyo3::import_exception!(treadle.shuffle.service._errors, Again);
pyo3::import_exception!(treadle.shuffle.service._errors, DamagedRows);
pyo3::import_exception!(treadle.shuffle.service._errors, LateAttempt);
pyo3::import_exception!(treadle.shuffle.service._errors, NoRoom);
pyo3::import_exception!(treadle.shuffle.service._errors, Superseded);

/// What the master knows of a shuffle: [`About`].
#[pyclass(frozen, get_all, module = "treadle._core")]
pub(crate) struct ShuffleAbout {
    name: String,
    maps: u32,
    partitions: u32,
    copies: u32,
    note: Py<PyBytes>,
    /// Ranges of maps that must run again.
    again: Vec<(u64, u64)>,
    /// A map has returned other rows than before.
    differs: bool,
    /// The generation in which all began anew; 0: none.
    restarted: u32,
    /// The generation that was committed last; 0: none. Masters of releases before do not say it.
    committed: Option<u32>,
}

/// A process that writes and reads.
#[pyclass(frozen, module = "treadle._core")]
pub(crate) struct ShuffleMember(ProcessLocal<Inner>);

struct Inner {
    member: Member,
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
            member: connected,
            charged: Mutex::default(),
        })))
    }

    /// Registers a shuffle: its number, and in how many failure domains there are servers.
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
            again: about.again.ranges().to_vec(),
            name: about.name,
            maps: about.maps,
            partitions: about.partitions,
            copies: about.copies,
            differs: about.differs,
            restarted: about.restarted.0,
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

    /// Pushes the rows of a map, and waits until all copies have them: the receipt, and how many rows and
    /// bytes there are. `again`: the map may have run before. With `worker` the calling thread runs a task of
    /// it, which may be cancelled, and says whether it has run before. Pieces are compressed by `compression`,
    /// one of `COMPRESSIONS`.
    #[pyo3(signature = (shuffle, map_index, rows, again, timeout, worker=None, compression=None))]
    #[expect(clippy::too_many_arguments, reason = "as many are needed")]
    fn transfer<'py>(
        &self,
        py: Python<'py>,
        shuffle: u64,
        map_index: u32,
        rows: &Bound<'py, Rows>,
        again: bool,
        timeout: Option<f64>,
        worker: Option<PyRef<'py, Worker>>,
        compression: Option<&str>,
    ) -> PyResult<(Bound<'py, PyBytes>, u64, u64)> {
        let rows = rows.get();
        let codec = compression.map(codec).transpose()?;
        let task = waiting(worker)?;
        let again = again || task.as_ref().is_some_and(Waiting::is_again);
        let is_task = task.is_some();
        let attempt = self.member()?.attempt();
        let receipt = self.planned(py, timeout, task.as_ref(), |plane, interrupted| {
            let transfer = Transfer {
                shuffle: ShuffleId(shuffle),
                map: map_index,
                attempt,
            };
            let packed = codec.map(|codec| Packed {
                source: rows,
                codec,
            });
            let source: &dyn Source = packed.as_ref().map_or(rows, |packed| packed);
            // Tasks of a worker run again because what they returned is lost.
            let outcome = plane.transfer(transfer, (again, is_task), source, interrupted);
            plane.finished(transfer.attempt, outcome.is_ok());
            outcome
        })?;
        let tally = receipt.tally();
        let bytes = PyBytes::new(py, &encode_shuffled(&receipt));
        Ok((bytes, tally.rows, tally.bytes))
    }

    /// Has the servers compare what they have with the receipts of all `maps`; the generation.
    #[pyo3(signature = (shuffle, maps, receipts, timeout, worker=None))]
    fn commit(
        &self,
        py: Python<'_>,
        shuffle: u64,
        maps: u32,
        receipts: Vec<PyBackedBytes>,
        timeout: Option<f64>,
        worker: Option<PyRef<'_, Worker>>,
    ) -> PyResult<u32> {
        let decoded = receipts.iter().map(|bytes| decode_shuffled(bytes));
        let decoded = decoded.collect::<Result<Vec<Receipt>, _>>();
        let decoded = decoded.map_err(|error| PyValueError::new_err(error.to_string()))?;
        let commit = Commit::new(ShuffleId(shuffle), maps, &decoded);
        let mut commit = commit.map_err(|error| PyValueError::new_err(error.to_string()))?;
        let task = waiting(worker)?;
        // Whoever uses the service directly says when maps run again. Dask's run again when it needs them.
        commit.keeps = task.is_none();
        let act = |plane: &Plane, interrupted: &mut dyn FnMut() -> bool| {
            plane.commit(commit, interrupted)
        };
        let committed = self.planned(py, timeout, task.as_ref(), act);
        Ok(committed?.0)
    }

    /// Gets the rows of a partition, of all maps or of those from `maps[0]` up to `maps[1]`: pieces in the
    /// order of their maps.
    #[pyo3(signature = (shuffle, generation, partition, width, maps, timeout, worker=None))]
    #[expect(clippy::too_many_arguments, reason = "as many are needed")]
    fn read(
        &self,
        py: Python<'_>,
        shuffle: u64,
        generation: u32,
        partition: u32,
        width: usize,
        maps: Option<(u32, u32)>,
        timeout: Option<f64>,
        worker: Option<PyRef<'_, Worker>>,
    ) -> PyResult<Vec<Piece>> {
        let maps = maps.map(|(first, end)| MapRange { first, end });
        let task = waiting(worker)?;
        self.planned(py, timeout, task.as_ref(), |plane, interrupted| {
            let (shuffle, generation) = (ShuffleId(shuffle), Generation(generation));
            let rows = plane.read(shuffle, generation, partition, maps, width, interrupted)?;
            Ok(joined(&rows, width, |rows| plane.charge(rows)))
        })
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
        self.0.is_on()
    }

    fn traced(&self, done: Done, shuffle: String) {
        self.0.shuffled(done, shuffle);
    }
}

fn codec(name: &str) -> PyResult<Codec> {
    let unknown = || PyValueError::new_err(format!("compression={name:?} is not known"));
    Codec::named(name).ok_or_else(unknown)
}

fn waiting(worker: Option<PyRef<'_, Worker>>) -> PyResult<Option<Waiting>> {
    worker.map(|worker| Waiting::of(&worker)).transpose()
}

impl ShuffleMember {
    /// What connects to the service.
    ///
    /// # Errors
    /// In a forked child.
    fn member(&self) -> PyResult<&Member> {
        Ok(&self.0.get()?.member)
    }

    /// Does something with the plane that may wait, without the interpreter's lock: until `task` is over, if
    /// it is one's.
    fn planned<T: Send>(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        task: Option<&Waiting>,
        act: impl FnOnce(&Plane, &mut dyn FnMut() -> bool) -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        let is_over = || task.is_some_and(Waiting::is_over);
        let member = self.member()?;
        let done = interruptible(py, timeout, |it| {
            let act = act(member.plane(), &mut || is_over() || it());
            act.map_err(|failure| member.explain(failure))
        })?;
        done.map_err(|failure| match failure {
            Err(error) => PyConnectionError::new_err(error.to_string()),
            Ok(Failure::Again(text)) => Again::new_err(text),
            Ok(Failure::Superseded(text)) => Superseded::new_err(text),
            Ok(Failure::Late(text)) => LateAttempt::new_err(text),
            Ok(Failure::NoRoom(text)) => NoRoom::new_err(text),
            Ok(Failure::Damaged(text)) => DamagedRows::new_err(text),
            Ok(Failure::Failed(text)) => ShuffleError::new_err(text),
            // Whatever becomes of a task that was cancelled, nobody hears of it.
            Ok(Failure::Interrupted) if is_over() => Reschedule::new_err("the task is over"),
            Ok(Failure::Interrupted) => PyTimeoutError::new_err(
                "no answer within the timeout; are there servers (`treadle shuffle-registry list`)?",
            ),
            Ok(Failure::Source(error)) => match error.downcast::<PyErr>() {
                Ok(error) => *error,
                Err(error) => ShuffleError::new_err(error.to_string()),
            },
        })
    }
}
