//! How a worker joins, in tests of several files.

use treadle_sight::Event;
use treadle_types::WorkerId;

/// Worker `w1`, for the number 1, with so many threads and bytes of memory; 0: no limit.
pub(crate) fn joined(worker: u32, threads: u32, memory: u64) -> Event<'static> {
    Event::Joined {
        worker: WorkerId(worker),
        name: format!("w{worker}"),
        address: "a".into(),
        host: "h".into(),
        pid: 1,
        threads,
        memory,
    }
}
