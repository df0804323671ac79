//! A process with a limit gives back what is free before it makes more.
#![cfg(target_os = "linux")]

use treadle_memory::{Pool, Segments, keep_below, occupied};

const MIB: usize = 1 << 20;

/// How many bytes the process takes more than before.
fn grown(before: u64) -> u64 {
    occupied().unwrap().saturating_sub(before)
}

// One test: the limit is that of the process.
#[test]
fn what_was_freed_does_not_come_on_top_of_what_is_made() {
    let before = occupied().unwrap();
    let limit = 250 * MIB as u64;
    keep_below(before + limit);
    let pool = Pool::global();
    let fill = |mib: usize| {
        let mut buffer = pool.buffer(mib * MIB).unwrap();
        buffer.as_mut_slice().fill(1);
        buffer
    };
    // Buffers that nobody uses any more, and then arrays that others may map.
    drop(fill(200));
    assert!(grown(before) > 199 * MIB as u64);
    let array = Segments::global().allocate(150 * MIB).unwrap();
    assert!(grown(before) <= limit, "{} bytes", grown(before));
    // Those, and then what the allocator keeps below something that is in use.
    // SAFETY: nobody uses it.
    assert!(unsafe { Segments::global().free(array) });
    let mut pieces: Vec<Vec<u8>> = (0..3200).map(|_| vec![1; 64 << 10]).collect();
    let last = pieces.pop();
    drop(pieces);
    let buffers = [fill(100), fill(100)];
    assert!(grown(before) <= limit, "{} bytes", grown(before));
    drop((buffers, last));
}
