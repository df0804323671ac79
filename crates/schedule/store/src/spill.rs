//! The thread that makes room.

use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use treadle_volume::{File, VolumeError};

use crate::file::Image;
use crate::ledger::{Key, Victim, Written};
use crate::state::{Contents, Inner, Spiller, State};
use crate::{Frames, Live};

/// How the names of files end.
const LABEL: &str = "object";

enum Failure {
    Serialise(Box<dyn Error + Send + Sync>),
    Disk(VolumeError),
}

/// Moves the coldest objects out of memory while there is too much in it, until the store closes.
pub(crate) fn run(inner: &Inner) {
    let mut state = inner.lock();
    while !state.closed {
        let now = Instant::now();
        let pause = state
            .fault
            .as_ref()
            .map(|fault| fault.backoff.until().saturating_duration_since(now))
            .filter(|pause| !pause.is_zero());
        let managed = state.ledger.totals().managed;
        // While the disk is left alone, only what needs no writing leaves.
        match state.ledger.next_victim(pause.is_none()) {
            Some(Victim::Unloaded(key)) => {
                let freed = managed - state.ledger.totals().managed;
                state.counters.dropped.add(freed);
                let before = state.contents.get_mut(&key).map(Contents::unload);
                inner.unlock(state);
                drop(before);
            }
            Some(Victim::Write(key)) => {
                let contents = &state.contents[&key];
                let (live, frames) = (contents.live.clone(), contents.frames.clone());
                inner.unlock(state);
                let began = Instant::now();
                let outcome = write(inner, key, live.as_ref(), frames);
                let left = finish(inner, key, outcome, began.elapsed());
                // The last references, perhaps.
                drop(live);
                drop(left);
            }
            None => {
                state = sleep(inner, state, pause);
                continue;
            }
        }
        state = inner.lock();
    }
}

fn sleep<'a>(
    inner: &'a Inner,
    mut state: MutexGuard<'a, State>,
    pause: Option<Duration>,
) -> MutexGuard<'a, State> {
    let mut state = match pause {
        Some(pause) => {
            state.spiller = Spiller::Pausing;
            let woken = inner.work.wait_timeout(state, pause);
            woken.unwrap_or_else(PoisonError::into_inner).0
        }
        None => {
            state.spiller = Spiller::Idle;
            let woken = inner.work.wait(state);
            woken.unwrap_or_else(PoisonError::into_inner)
        }
    };
    state.spiller = Spiller::Busy;
    state
}

/// Writes a content to a file.
fn write(
    inner: &Inner,
    key: Key,
    live: Option<&Arc<dyn Live>>,
    frames: Option<Arc<Frames>>,
) -> Result<File, Failure> {
    let frames = match (frames, live) {
        (Some(frames), _) => frames,
        (None, Some(live)) => Arc::new(serialise(live.as_ref()).map_err(Failure::Serialise)?),
        (None, None) => unreachable!("{key:?} has nothing to write"),
    };
    let image = Image::new(&frames);
    inner
        .volume
        .write(LABEL, &image.pieces(), inner.options.sync)
        .map_err(Failure::Disk)
}

/// A panic of the embedder's would end the thread and leave the store without one.
pub(crate) fn serialise(live: &dyn Live) -> Result<Frames, Box<dyn Error + Send + Sync>> {
    catch_unwind(AssertUnwindSafe(|| live.frames()))
        .unwrap_or_else(|_| Err("serialising it panicked".into()))
}

/// Books the outcome: what is to be dropped.
fn finish(
    inner: &Inner,
    key: Key,
    outcome: Result<File, Failure>,
    took: Duration,
) -> Option<Contents> {
    let mut state = inner.lock();
    let left = match outcome {
        Ok(file) => {
            state.fault = None;
            state.counters.written.add(file.len());
            state.counters.write_time += took;
            let written = state.ledger.written(key, file.len());
            let contents = state.contents.get_mut(&key);
            let contents = contents.expect("what is being written is not dropped");
            contents.file = Some(file);
            match written {
                Written::Kept => None,
                Written::Unloaded => Some(contents.unload()),
                Written::Gone => Some(state.take(key)),
            }
        }
        Err(failure) => {
            let stuck = matches!(failure, Failure::Serialise(_));
            match failure {
                Failure::Serialise(error) => {
                    state.counters.serialise_error = Some(error.to_string());
                }
                Failure::Disk(error) => state.failed(error, inner.options.retry),
            }
            let gone = state.ledger.write_failed(key, stuck);
            gone.then(|| state.take(key))
        }
    };
    inner.unlock(state);
    left
}
