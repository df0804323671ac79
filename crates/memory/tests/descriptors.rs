//! Descriptors are few. Alone in its process, because the limit is the process's.
#![cfg(target_os = "linux")]

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use treadle_memory::{MemoryError, Segments};

#[test]
fn segments_leave_descriptors_to_others() {
    let limit = Rlimit {
        current: Some(40),
        ..getrlimit(Resource::Nofile)
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    let segments = Segments::new(64 << 20);
    let mut starts: Vec<_> = (0..10).map(|_| segments.allocate(1).unwrap()).collect();
    assert_eq!(
        segments.allocate(1),
        Err(MemoryError::TooManySegments { most: 10 })
    );
    // One that is only kept makes room for another size.
    // SAFETY: nobody uses it.
    assert!(unsafe { segments.free(starts.pop().unwrap()) });
    starts.push(segments.allocate(1 << 20).unwrap());
    assert_eq!(segments.stats().segments, 10);
    // As does one that a receiver has.
    let parked = starts.pop().unwrap();
    let export = segments.export(parked.as_ptr(), 1).unwrap();
    segments.lend(export.segment);
    // SAFETY: nobody uses it.
    assert!(unsafe { segments.free(parked) });
    drop(export);
    assert_eq!(segments.stats().parked_bytes, 1 << 20);
    starts.push(segments.allocate(1).unwrap());
    assert_eq!(
        (segments.stats().segments, segments.stats().parked_bytes),
        (10, 0)
    );
}
