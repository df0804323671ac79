//! Descriptors are few. Alone in its process, because the limit is the process's.
#![cfg(target_os = "linux")]

use rustix::fd::AsFd;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use treadle_memory::{Handover, Mapping, MemoryError, Segments};

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

    // Mappings keep an eighth of them.
    let export = segments.export(starts[0].as_ptr(), 1).unwrap();
    let map = |_| {
        let descriptor = export.as_fd().try_clone_to_owned().unwrap();
        Mapping::new(descriptor, export.offset, export.length).unwrap()
    };
    let mappings: Vec<Mapping> = (0..7).map(map).collect();
    let kept = |mapping: &&Mapping| Handover::of(mapping.as_ptr(), 1).is_some();
    assert_eq!(mappings.iter().filter(kept).count(), 5);
}
