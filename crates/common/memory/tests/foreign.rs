//! Files of others that are kept and mapped again.
#![cfg(target_os = "linux")]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fd::AsFd;
use treadle_memory::{Foreign, MemoryError, Segments};

const LEN: usize = 300_000;

fn segment(lender: &'static Segments, byte: u8) -> NonNull<u8> {
    let start = lender.allocate(LEN).unwrap();
    // SAFETY: just allocated.
    unsafe { start.write_bytes(byte, LEN) };
    lender.keep_constant(start);
    start
}

#[test]
fn a_file_that_is_kept_has_what_it_has_when_it_is_mapped_again() {
    let lender = Segments::new(64 << 20);
    let start = segment(lender, 1);
    let export = lender.export(start.as_ptr(), LEN).unwrap();
    let (id, number) = (export.segment, export.file());
    lender.lend(id);
    let file = Foreign::new(export.as_fd().try_clone_to_owned().unwrap()).unwrap();
    drop(export);
    let mut mapping = file.map(0, LEN as u64).unwrap();
    let address = mapping.as_ptr();
    assert!(mapping.as_slice().iter().all(|&byte| byte == 1));
    // SAFETY: within the mapping, which is this test's.
    unsafe { mapping.as_mut_ptr().write_bytes(7, LEN / 2) };
    let told = Arc::new(AtomicU32::new(0));
    let (counter, kept) = (Arc::clone(&told), Arc::clone(&file));
    mapping.on_drop(Box::new(move || {
        counter.fetch_add(1, Ordering::SeqCst);
        drop(kept);
    }));
    drop(mapping);
    assert_eq!(told.load(Ordering::SeqCst), 1);

    // SAFETY: nobody uses it.
    assert!(unsafe { lender.free(start) });
    lender.release(id);
    let start = segment(lender, 2);
    let export = lender.export(start.as_ptr(), LEN).unwrap();
    assert_eq!(export.file(), number, "the file is used again");
    assert_ne!(export.segment, id);
    let again = file.map(0, LEN as u64).unwrap();
    assert_eq!(again.as_ptr(), address, "and so is its mapping");
    assert!(again.as_slice().iter().all(|&byte| byte == 2));
    // What is mapped twice at once is mapped at two places.
    let other = file.map(0, LEN as u64).unwrap();
    assert_ne!(other.as_ptr(), address);
    let part = file.map(1000, 5).unwrap();
    assert_eq!(part.as_slice(), [2; 5]);
}

#[test]
fn nothing_beyond_its_end_is_mapped() {
    let lender = Segments::new(64 << 20);
    let start = segment(lender, 1);
    let export = lender.export(start.as_ptr(), LEN).unwrap();
    let file = Foreign::new(export.as_fd().try_clone_to_owned().unwrap()).unwrap();
    for (offset, length) in [(0, file.size() + 1), (file.size(), 1), (u64::MAX, 2)] {
        let error = file.map(offset, length).unwrap_err();
        assert!(matches!(error, MemoryError::OutOfBounds { .. }), "{error}");
    }
    assert!(file.map(file.size(), 0).unwrap().is_empty());
}
