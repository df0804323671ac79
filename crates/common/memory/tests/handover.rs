//! What is mapped, handed on to a third one.
#![cfg(target_os = "linux")]

use rustix::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use treadle_memory::{Handover, Mapping, Segments};

const LEN: usize = 3 << 20;
const OFFSET: usize = 4_321;
const PAGE: usize = 4096;

fn byte(i: usize) -> u8 {
    (i % 251) as u8
}

/// A mapping of a fresh segment of the lender, and how often the lender was told of its release.
fn mapped(lender: &'static Segments) -> (Mapping, Arc<AtomicU32>) {
    let start = lender.allocate(LEN).unwrap();
    // SAFETY: just allocated.
    let bytes = unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), LEN) };
    for (i, slot) in bytes.iter_mut().enumerate() {
        *slot = byte(i);
    }
    let export = lender
        .export(bytes[OFFSET..].as_ptr(), LEN - OFFSET)
        .unwrap();
    let descriptor = export.as_fd().try_clone_to_owned().unwrap();
    let mut mapping = Mapping::new(descriptor, export.offset, export.length).unwrap();
    let told = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&told);
    mapping.on_drop(Box::new(move || {
        counter.fetch_add(1, Ordering::SeqCst);
    }));
    (mapping, told)
}

fn map(handover: &Handover) -> Mapping {
    let descriptor = handover.as_fd().try_clone_to_owned().unwrap();
    Mapping::new(descriptor, handover.offset, handover.length).unwrap()
}

#[test]
fn what_was_handed_on_is_the_same_memory_and_its_own_to_write() {
    let lender = Segments::new(64 << 20);
    let (mut first, _) = mapped(lender);
    let within = 10_000;
    // SAFETY: within the mapping.
    let start = unsafe { first.as_ptr().add(within) };
    let handover = Handover::of(start, 100_000).unwrap();
    let mut second = map(&handover);
    assert!(
        (OFFSET + within..)
            .zip(second.as_slice())
            .all(|(i, &b)| b == byte(i))
    );
    // SAFETY: within the mapping, which nobody else reads.
    unsafe { second.as_mut_ptr().write_bytes(255, second.len()) };
    assert!((OFFSET..).zip(first.as_slice()).all(|(i, &b)| b == byte(i)));

    // A fourth one gets what the lender had, from the second mapping's pages that are intact.
    let third = map(&handover);
    // SAFETY: within the mapping.
    unsafe { first.as_mut_ptr().add(within).write(254) };
    assert_eq!(third.as_slice()[0], byte(OFFSET + within));
    assert!(Handover::of(start, 1).is_none(), "it was written to");
    // SAFETY: within the mapping.
    let beyond = unsafe { start.add(2 * PAGE) };
    assert!(Handover::of(beyond, PAGE).is_some());
    assert!(Handover::of(second.as_ptr(), 1).is_none());
}

#[test]
fn the_lender_is_told_when_the_last_one_has_unmapped_it() {
    let lender = Segments::new(64 << 20);
    let (mapping, told) = mapped(lender);
    let handover = Handover::of(mapping.as_ptr(), LEN - OFFSET).unwrap();
    let other = handover.clone();
    assert_eq!(handover.id(), other.id());
    drop(handover);
    drop(mapping);
    assert_eq!(told.load(Ordering::SeqCst), 0);
    drop(other);
    assert_eq!(told.load(Ordering::SeqCst), 1);
}

#[test]
fn the_lender_is_not_told_of_what_somebody_may_still_have() {
    let lender = Segments::new(64 << 20);
    let (mapping, told) = mapped(lender);
    let handover = Handover::of(mapping.as_ptr(), LEN - OFFSET).unwrap();
    handover.abandon();
    drop(mapping);
    assert_eq!(told.load(Ordering::SeqCst), 0);
}

#[test]
fn only_what_is_mapped_can_be_handed_on() {
    let lender = Segments::new(64 << 20);
    let own = vec![0_u8; LEN];
    assert!(Handover::of(own.as_ptr(), LEN).is_none());
    let (mapping, told) = mapped(lender);
    let (start, len) = (mapping.as_ptr(), mapping.len());
    assert!(Handover::is_possible(start, len));
    assert!(!Handover::is_possible(start, 0));
    assert!(!Handover::is_possible(start, len + 1));
    drop(mapping);
    assert!(!Handover::is_possible(start, len));
    assert_eq!(told.load(Ordering::SeqCst), 1);
}

#[test]
fn what_is_kept_is_looked_at_when_it_may_be_written() {
    let lender = Segments::new(64 << 20);
    let (mut mapping, _) = mapped(lender);
    let (start, len) = (mapping.as_ptr(), mapping.len());
    assert!(Handover::of_kept(start, len).is_some());
    let again = Handover::of(start, len).unwrap().map().unwrap();
    assert_eq!(again.as_slice(), mapping.as_slice());
    Handover::let_write(start, len);
    assert!(Handover::of(start, len).is_some());
    // SAFETY: the mapping's first byte.
    unsafe { mapping.as_mut_ptr().write(!*start) };
    assert!(Handover::of(start, len).is_none());
    assert_ne!(again.as_slice()[0], mapping.as_slice()[0]);
}
