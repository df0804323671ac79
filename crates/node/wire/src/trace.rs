//! What the scheduler's process and a worker's have in common when the cluster is traced.

use rustix::time::{ClockId, clock_gettime};

/// The scheduler's call that switches it on and off at a worker.
pub const SWITCH: &str = "trace";
/// The call that brings a batch of a worker's events to the scheduler.
pub const BATCH: &str = "trace-batch";

/// Nanoseconds of `CLOCK_MONOTONIC`, which the processes of a machine share.
pub fn monotonic() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let (seconds, nanos) = (time.tv_sec, time.tv_nsec);
    u64::try_from(seconds).unwrap_or(0) * 1_000_000_000 + u64::try_from(nanos).unwrap_or(0)
}
