//! What a store does while its disk works.

mod common;

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use bytes::Bytes;
use common::{Fails, Fixture, KIND, LONG, NOW, Value, bytes, eventually, id};
use treadle_memory::Ledger;
use treadle_store::{Form, Frames, Live, Memory, Overlap, StoreError};

#[test]
fn a_live_object_is_the_same_object() {
    let f = Fixture::new(100, 100);
    let live = Value::failing(1, 10, &f.seen, Fails::No);
    f.store.put(id(1), Arc::clone(&live), NOW).unwrap();
    let pinned = f.store.get(id(1)).unwrap();
    assert!(Arc::ptr_eq(pinned.live().unwrap(), &live));
    assert_eq!(f.store.stats().managed, 10);
    f.check();
}

#[test]
fn an_unknown_object_is_an_error_that_names_it() {
    let f = Fixture::new(100, 100);
    let error = f.store.get(id(404)).unwrap_err();
    assert!(matches!(error, StoreError::Unknown { id } if id.0 == 404));
    assert!(error.to_string().contains("object 404"), "{error}");
    assert!(f.store.retain(id(404)).is_err());
    assert!(f.store.release(id(404)).is_err());
    assert!(f.store.remove(id(404)).is_err());
    assert!(f.store.info(id(404)).is_none());
}

#[test]
fn above_the_target_the_coldest_go_to_disk_and_come_back() {
    let f = Fixture::new(2500, 10_000);
    for object in 0..4 {
        f.put(object, 1000);
        // The first stays the warmest.
        drop(f.store.get(id(0)).unwrap());
    }
    f.settle();
    let spilled: Vec<bool> = (0..4).map(|object| f.spilled(object)).collect();
    assert_eq!(spilled, [false, true, true, false]);
    eventually("dropped", || f.seen.dropped.load(Ordering::SeqCst) == 2);
    assert_eq!(f.files().len(), 2);

    let mut pinned = f.store.get(id(1)).unwrap();
    assert!(pinned.live().is_none());
    let frames = pinned.frames().unwrap();
    assert_eq!(frames.kind(), KIND);
    assert_eq!(frames.parts(), [bytes(1, 1000)]);
    assert_eq!(frames.parts()[0].as_ptr() as usize % 64, 0);
    assert_eq!(f.store.stats().read.count, 1);
    drop(pinned);
    f.settle();
}

#[test]
fn no_parts_and_empty_parts_come_back() {
    let f = Fixture::new(0, 10_000);
    let parts = vec![Bytes::new(), bytes(1, 65), Bytes::new()];
    f.store
        .put(id(1), Frames::new(3, parts.clone()), NOW)
        .unwrap();
    f.settle();
    let mut pinned = f.store.get(id(1)).unwrap();
    assert_eq!(pinned.frames().unwrap().parts(), parts);
    // Nothing is gained by writing what takes no memory.
    f.store.put(id(2), Frames::new(4, vec![]), NOW).unwrap();
    drop(pinned);
    f.settle();
    assert!(f.store.info(id(2)).unwrap().frames);
}

#[test]
fn an_object_in_use_stays() {
    let f = Fixture::new(1000, 10_000);
    f.put(1, 900);
    let pinned = f.store.get(id(1)).unwrap();
    for object in 2..5 {
        f.put(object, 900);
    }
    // Only the pinned one is left in memory, which is colder than all others.
    f.settle();
    assert!((2..5).all(|object| f.spilled(object)));
    assert!(f.store.info(id(1)).unwrap().live);
    f.put(5, 50);
    drop(pinned);
    f.put(6, 900);
    eventually("both colder ones go", || f.spilled(5) && f.spilled(1));
    f.settle();
}

#[test]
fn put_waits_until_spilling_made_room() {
    let f = Fixture::new(1000, 1000);
    f.put(1, 600);
    // There is room only if what was below the target goes too.
    f.put(2, 600);
    assert!(f.spilled(1));
    f.check();
    for object in 3..20 {
        f.put(object, 900);
        assert!(f.store.stats().managed <= 1000);
    }
    f.check();
}

#[test]
fn put_waits_until_somebody_releases() {
    let f = Fixture::new(1000, 1000);
    f.put(1, 600);
    let pinned = f.store.get(id(1)).unwrap();
    thread::scope(|scope| {
        let putting = scope.spawn(|| f.put(2, 600));
        eventually("it waits", || f.store.stats().waiting == 1);
        f.store.remove(id(1)).unwrap();
        assert_eq!(f.store.stats().waiting, 1, "the memory is in use still");
        drop(pinned);
        putting.join().unwrap();
    });
    assert_eq!(f.store.stats().waiting, 0);
    f.check();
}

#[test]
fn without_room_the_object_comes_back() {
    let f = Fixture::new(600, 1000);
    f.put(1, 600);
    let _pinned = f.store.get(id(1)).unwrap();
    let live = Value::failing(2, 600, &f.seen, Fails::No);
    let before = f.store.stats();
    let error = f.store.put(id(2), Arc::clone(&live), NOW).unwrap_err();
    match &error.object {
        Form::Live(object) => assert!(Arc::ptr_eq(object, &live)),
        other => panic!("{other:?}"),
    }
    let StoreError::NoMemory {
        needed,
        managed,
        pinned,
        limit,
        ..
    } = error.error
    else {
        panic!("{error}");
    };
    assert_eq!((needed, managed, pinned, limit), (600, 600, 600, 1000));
    assert_eq!(f.store.stats(), before);
    f.check();
}

#[test]
fn an_object_above_the_limit_is_refused_at_once() {
    let f = Fixture::new(600, 1000);
    let form = Value::form(1, 1001, &f.seen);
    // With a timeout that would fail the test.
    let error = f.store.put(id(1), form, LONG * 100).unwrap_err();
    assert!(matches!(error.error, StoreError::NoMemory { .. }));
    f.put(1, 1000);
}

#[test]
fn an_unchanged_object_is_written_once() {
    let f = Fixture::new(0, 10_000);
    f.put(1, 1000);
    f.settle();
    for _ in 0..3 {
        let mut pinned = f.store.get(id(1)).unwrap();
        assert_eq!(pinned.frames().unwrap().parts(), [bytes(1, 1000)]);
        drop(pinned);
        f.settle();
    }
    let stats = f.store.stats();
    assert_eq!((stats.written.count, stats.read.count), (1, 3));
    assert_eq!(stats.dropped.count, 3);
    assert_eq!(f.seen.serialised.load(Ordering::SeqCst), 1);

    f.store
        .put(id(1), Value::form(2, 500, &f.seen), NOW)
        .unwrap();
    f.settle();
    assert_eq!(f.store.stats().written.count, 2);
    assert_eq!(f.files().len(), 1, "the old file is gone");
    let mut pinned = f.store.get(id(1)).unwrap();
    assert_eq!(pinned.frames().unwrap().parts(), [bytes(2, 500)]);
}

#[test]
fn the_last_reference_takes_object_and_file() {
    let f = Fixture::new(0, 10_000);
    f.put(1, 1000);
    f.settle();
    f.store.retain(id(1)).unwrap();
    f.store.release(id(1)).unwrap();
    assert!(f.store.release(id(1)).is_err(), "what was put is removed");
    assert_eq!(f.store.info(id(1)).unwrap().references, 1);
    assert_eq!(f.files().len(), 1);
    f.store.remove(id(1)).unwrap();
    assert!(f.store.info(id(1)).is_none());
    assert!(f.files().is_empty());
    assert_eq!(f.store.stats().objects.count, 0);
    f.check();
}

#[test]
fn overwriting_keeps_references() {
    let f = Fixture::new(1000, 1000);
    f.put(1, 10);
    f.store.retain(id(1)).unwrap();
    f.put(1, 20);
    assert_eq!(f.store.info(id(1)).unwrap().references, 2);
    assert_eq!(f.store.stats().managed, 20);
    assert_eq!(f.seen.dropped.load(Ordering::SeqCst), 1);
    f.check();
}

/// It is put again while somebody retains what was there before.
#[test]
fn what_is_put_again_is_kept_again() {
    let f = Fixture::new(1000, 1000);
    f.put(1, 10);
    f.store.retain(id(1)).unwrap();
    f.store.remove(id(1)).unwrap();
    assert!(f.store.remove(id(1)).is_err(), "it is another's now");
    f.put(1, 20);
    f.store.release(id(1)).unwrap();
    assert_eq!(f.store.info(id(1)).unwrap().references, 1);
    f.store.remove(id(1)).unwrap();
    assert!(f.store.info(id(1)).is_none());
    f.check();
}

#[test]
fn freed_and_overwritten_objects_last_as_long_as_their_pins() {
    let f = Fixture::new(0, 10_000);
    f.put(1, 1000);
    f.settle();
    let mut first = f.store.get(id(1)).unwrap();
    f.put(1, 300);
    let second = f.store.get(id(1)).unwrap();
    f.store.remove(id(1)).unwrap();
    assert!(f.store.get(id(1)).is_err());
    assert_eq!(first.frames().unwrap().parts(), [bytes(1, 1000)]);
    f.check();
    drop(first);
    drop(second);
    eventually("gone", || f.store.stats().objects.count == 0);
    eventually("the files too", || f.files().is_empty());
    assert_eq!(f.store.stats().managed, 0);
    f.check();
}

#[test]
fn one_thread_reads_what_several_want() {
    let f = Fixture::new(0, 10_000);
    f.put(1, 1000);
    f.settle();
    f.disk.hold_reads(true);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut pinned = f.store.get(id(1)).unwrap();
                    pinned.frames().unwrap().parts()[0].clone()
                })
            })
            .collect();
        eventually("all ask", || f.store.info(id(1)).unwrap().pins == 4);
        f.disk.hold_reads(false);
        for reader in readers {
            assert_eq!(reader.join().unwrap(), bytes(1, 1000));
        }
    });
    assert_eq!(f.disk.reads(), 1);
    assert_eq!(f.store.stats().read.count, 1);
    f.settle();
}

#[test]
fn an_object_freed_while_it_is_written_leaves_no_file() {
    let f = Fixture::new(0, 10_000);
    f.disk.hold_writes(true);
    f.put(1, 1000);
    eventually("it is written", || f.disk.held() == 1);
    f.store.remove(id(1)).unwrap();
    assert!(f.store.info(id(1)).is_none());
    f.disk.hold_writes(false);
    eventually("it is gone", || f.store.stats().objects.count == 0);
    eventually("its file too", || f.files().is_empty());
    eventually("dropped", || f.seen.dropped.load(Ordering::SeqCst) == 1);
    f.check();
}

#[test]
fn an_object_used_while_it_is_written_stays() {
    let f = Fixture::new(0, 10_000);
    f.disk.hold_writes(true);
    f.put(1, 1000);
    eventually("it is written", || f.disk.held() == 1);
    let pinned = f.store.get(id(1)).unwrap();
    f.disk.hold_writes(false);
    eventually("the file is there", || f.store.info(id(1)).unwrap().file);
    assert!(f.store.info(id(1)).unwrap().live);
    f.check();
    drop(pinned);
    f.settle();
    assert!(f.spilled(1));
    assert_eq!(f.store.stats().written.count, 1);
}

#[test]
fn overwritten_while_it_is_written_the_new_value_counts() {
    let f = Fixture::new(0, 10_000);
    f.disk.hold_writes(true);
    f.put(1, 1000);
    eventually("it is written", || f.disk.held() == 1);
    let form = Value::form(2, 500, &f.seen);
    f.store.put(id(1), form, NOW).unwrap();
    f.disk.hold_writes(false);
    f.settle();
    eventually("one file", || f.files().len() == 1);
    let mut pinned = f.store.get(id(1)).unwrap();
    assert_eq!(pinned.frames().unwrap().parts(), [bytes(2, 500)]);
}

#[test]
fn what_cannot_be_serialised_stays_and_the_others_go() {
    for fails in [Fails::Error, Fails::Panic] {
        let f = Fixture::new(1000, 10_000);
        let live = Value::failing(1, 900, &f.seen, fails);
        f.store.put(id(1), live, NOW).unwrap();
        f.put(2, 900);
        f.settle();
        assert!(f.spilled(2));
        let stats = f.store.stats();
        assert_eq!((stats.stuck.count, stats.stuck.nbytes), (1, 900));
        assert!(stats.serialise_error.is_some());
        assert_eq!(stats.disk_error, None);
        let mut pinned = f.store.get(id(1)).unwrap();
        assert!(pinned.live().is_some());
        let error = pinned.frames().unwrap_err();
        assert!(matches!(error, StoreError::Serialise { .. }));
        // Given frames from elsewhere it can go.
        pinned.attach_frames(Frames::new(0, vec![bytes(1, 900)]));
        drop(pinned);
        f.put(3, 900);
        eventually("it went", || f.spilled(1) || f.spilled(3));
        assert_eq!(f.store.stats().stuck.count, 0);
        f.check();
    }
}

#[test]
fn frames_that_view_the_object_cost_nothing() {
    let f = Fixture::new(10_000, 10_000);
    let value = Arc::new(Value {
        bytes: bytes(1, 1000),
        fails: Fails::No,
        seen: Arc::clone(&f.seen),
    });
    let start = value.bytes.as_ptr();
    f.store.put(id(1), value as Arc<dyn Live>, NOW).unwrap();
    let mut one = f.store.get(id(1)).unwrap();
    let mut other = f.store.get(id(1)).unwrap();
    assert_eq!(one.frames().unwrap().parts()[0].as_ptr(), start);
    assert!(Arc::ptr_eq(
        &one.frames().unwrap(),
        &other.frames().unwrap()
    ));
    assert_eq!(f.seen.serialised.load(Ordering::SeqCst), 1);
    let stats = f.store.stats();
    assert_eq!((stats.managed, stats.frames.nbytes), (1000, 1000));
    f.check();
}

#[test]
fn an_object_made_from_what_was_read_is_counted_once() {
    let f = Fixture::new(0, 10_000);
    f.put(1, 1000);
    f.settle();
    let mut pinned = f.store.get(id(1)).unwrap();
    let file = f.store.stats().managed;
    let live = Value::failing(1, 1000, &f.seen, Fails::No);
    let kept = pinned.attach_live(Arc::clone(&live), Overlap::Frames);
    assert!(Arc::ptr_eq(&kept, &live));
    assert_eq!(f.store.stats().managed, file);
    // Another reader's is not needed, and one that asks later gets the first.
    let second = Value::failing(1, 1000, &f.seen, Fails::No);
    assert!(Arc::ptr_eq(
        &pinned.attach_live(second, Overlap::Frames),
        &live
    ));
    let again = f.store.get(id(1)).unwrap();
    assert!(Arc::ptr_eq(again.live().unwrap(), &live));
    drop((pinned, again));
    f.settle();
    assert_eq!(f.store.stats().written.count, 1);
}

#[test]
fn shared_memory_is_counted_apart_and_stays() {
    let f = Fixture::new(0, 1000);
    let shared = Frames::new(5, vec![bytes(1, 5000)]).shared();
    f.store.put(id(1), shared, NOW).unwrap();
    let stats = f.store.stats();
    assert_eq!((stats.managed, stats.shared.nbytes), (0, 5000));
    // The live object that views it costs nothing, and one that copied it can go unwritten.
    let mut pinned = f.store.get(id(1)).unwrap();
    pinned.attach_live(Value::failing(1, 5000, &f.seen, Fails::No), Overlap::Frames);
    assert_eq!(f.store.stats().managed, 0);
    drop(pinned);

    let copied = Frames::new(5, vec![bytes(2, 800)]).shared();
    f.store.put(id(2), copied, NOW).unwrap();
    let mut pinned = f.store.get(id(2)).unwrap();
    pinned.attach_live(Value::failing(2, 800, &f.seen, Fails::No), Overlap::None);
    assert_eq!(f.store.stats().managed, 800);
    drop(pinned);
    f.settle();
    assert_eq!(f.store.stats().dropped.nbytes, 800);
    assert!(f.files().is_empty());
    let mut pinned = f.store.get(id(2)).unwrap();
    assert_eq!(pinned.frames().unwrap().memory(), Memory::Shared);
    assert_eq!(pinned.frames().unwrap().parts(), [bytes(2, 800)]);
    drop(pinned);

    // Once nobody else maps it, it is memory like any other.
    f.store.unshare(id(2)).unwrap();
    f.settle();
    assert!(f.spilled(2));
    let mut pinned = f.store.get(id(2)).unwrap();
    assert_eq!(pinned.frames().unwrap().parts(), [bytes(2, 800)]);
    f.check();
}

#[test]
fn frames_that_are_copied_quickly_go_with_their_reader() {
    struct Strided(Bytes, AtomicUsize);

    impl Live for Strided {
        fn as_any(&self) -> &dyn std::any::Any {
            self
        }

        fn nbytes(&self) -> u64 {
            self.0.len() as u64
        }

        fn frames(&self) -> Result<Frames, Box<dyn Error + Send + Sync>> {
            self.1.fetch_add(1, Ordering::SeqCst);
            Ok(Frames::new(1, vec![Bytes::copy_from_slice(&self.0)]).copied())
        }
    }

    let f = Fixture::new(10_000, 10_000);
    let value = Arc::new(Strided(bytes(1, 1000), AtomicUsize::new(0)));
    f.store
        .put(id(1), value.clone() as Arc<dyn Live>, NOW)
        .unwrap();
    for copies in 1..=2 {
        let mut pinned = f.store.get(id(1)).unwrap();
        let frames = pinned.frames().unwrap();
        assert_eq!(frames.parts(), [bytes(1, 1000)]);
        assert!(Arc::ptr_eq(&frames, &pinned.frames().unwrap()));
        assert_eq!(f.store.stats().managed, 1000);
        drop(pinned);
        assert_eq!(Arc::strong_count(&frames), 1);
        assert_eq!(value.1.load(Ordering::SeqCst), copies);
    }
    f.check();
}

#[test]
fn an_exported_object_is_shared_until_it_is_not() {
    let f = Fixture::new(10_000, 10_000);
    f.put(1, 1000);
    let mut pinned = f.store.get(id(1)).unwrap();
    pinned.attach_frames(Frames::new(5, vec![bytes(1, 1000)]).shared());
    drop(pinned);
    let stats = f.store.stats();
    assert_eq!((stats.managed, stats.shared.nbytes), (0, 1000));
    f.store.unshare(id(1)).unwrap();
    let stats = f.store.stats();
    assert_eq!((stats.managed, stats.shared.nbytes), (1000, 0));
    f.check();
}

#[test]
fn many_threads_find_every_value() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 150;
    let f = Fixture::new(6000, 12_000);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let f = &f;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let object = thread * ROUNDS + round;
                    f.put(object, 500 + (object % 7) as usize * 100);
                    // One of its own from before, and one of everybody's.
                    for other in [object - round / 2, (round * 31) % (THREADS * ROUNDS)] {
                        if let Ok(mut pinned) = f.store.get(id(other)) {
                            let part = pinned.frames().unwrap().parts()[0].clone();
                            assert_eq!(part, bytes(other, part.len()));
                        }
                    }
                    f.check();
                    if round % 3 == 0 {
                        f.store.remove(id(object)).unwrap();
                    }
                }
            });
        }
    });
    f.settle();
    let stats = f.store.stats();
    assert_eq!(stats.objects.count, THREADS * ROUNDS * 2 / 3);
    assert_eq!(stats.pinned.count, 0);
    assert!(stats.read.count > 0 && stats.written.count > 0);
    for object in 0..THREADS * ROUNDS {
        if f.store.info(id(object)).is_some() {
            f.store.remove(id(object)).unwrap();
        }
    }
    eventually("nothing is left", || f.store.stats().objects.count == 0);
    assert_eq!(f.store.stats().managed, 0);
    eventually("no file", || f.files().is_empty());
    eventually("every value is dropped", || {
        f.seen.dropped.load(Ordering::SeqCst) == THREADS * ROUNDS
    });
    f.check();
}

#[test]
fn a_ledger_of_memory_gives_it_a_target() {
    let f = Fixture::new(1000, 2000);
    let ledger = Ledger::new();
    let registration = ledger.register("values", f.store.clone());
    for object in 0..3 {
        f.put(object, 300);
    }
    let stock = ledger.stock(|| 1100);
    assert_eq!((stock.used, stock.rest), (900, 200));
    // Never above its own.
    ledger.share(5000, 200);
    assert_eq!(f.store.stats().target, 1000);
    // The rest of the process grows.
    ledger.share(5000, 4600);
    assert_eq!(f.store.stats().target, 400);
    f.settle();
    assert_eq!(f.store.stats().spilled.count, 2);
    drop(registration);
    ledger.share(5000, 5000);
    assert_eq!(f.store.stats().target, 400, "it has left");
}
