//! Buffers and what is kept of them.

use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;
use treadle_memory::{Buffer, MemoryError, Pool};

const MIB: usize = 1 << 20;
/// The longest buffer that comes from the allocator.
const SMALL: usize = (128 << 10) - 1;

#[test]
fn a_buffer_has_the_length_that_was_asked_for() {
    let pool = Pool::new(64 * MIB);
    for len in [
        0,
        1,
        63,
        64,
        65,
        4096,
        SMALL,
        SMALL + 1,
        MIB,
        MIB + 1,
        3 * MIB + 17,
    ] {
        let mut buffer = pool.buffer(len).unwrap();
        assert_eq!((buffer.len(), buffer.is_empty()), (len, len == 0));
        assert_eq!(buffer.as_ptr().addr() % 64, 0, "{len}");
        buffer.as_mut_slice().fill(7);
        assert_eq!(buffer.as_slice(), vec![7; len]);
        assert_eq!(buffer.as_mut_ptr().cast_const(), buffer.as_ptr());
    }
}

#[test]
fn large_memory_is_used_again_and_small_memory_is_not_kept() {
    let pool = Pool::new(64 * MIB);
    drop(pool.buffer(SMALL).unwrap());
    assert_eq!(pool.idle_bytes(), 0);

    let first = pool.buffer(8 * MIB).unwrap();
    let address = first.as_ptr();
    drop(first);
    assert_eq!(pool.idle_bytes(), 8 * MIB);
    // Slightly less is the same class.
    let again = pool.buffer(8 * MIB - 5).unwrap();
    assert_eq!((again.as_ptr(), again.len()), (address, 8 * MIB - 5));
    assert_eq!(pool.idle_bytes(), 0);
    let other = pool.buffer(8 * MIB).unwrap();
    assert_ne!(other.as_ptr(), address);
}

#[test]
fn bytes_return_to_the_pool_with_their_last_clone() {
    let pool = Pool::new(64 * MIB);
    let mut buffer = pool.buffer(2 * MIB).unwrap();
    buffer.as_mut_slice().fill(3);
    let address = buffer.as_ptr();
    let bytes = buffer.into_bytes();
    assert_eq!(bytes.as_ptr(), address);
    let part = bytes.slice(MIB..);
    drop(bytes);
    assert_eq!(pool.idle_bytes(), 0);
    assert!(part.iter().all(|&byte| byte == 3));
    drop(part);
    assert_eq!(pool.idle_bytes(), 2 * MIB);
}

#[test]
fn what_is_idle_for_long_goes_back_to_the_system() {
    let pool = Pool::new(64 * MIB);
    drop(pool.buffer(4 * MIB).unwrap());
    pool.expire(Duration::from_secs(3600));
    assert_eq!(pool.idle_bytes(), 4 * MIB);
    let used = pool.buffer(2 * MIB).unwrap();
    pool.expire(Duration::ZERO);
    assert_eq!(pool.idle_bytes(), 0);
    drop(used);
    assert_eq!(pool.idle_bytes(), 2 * MIB);
}

#[test]
fn what_is_idle_for_longest_goes_first() {
    let pool = Pool::new(8 * MIB);
    let buffers: Vec<Buffer> = [4, 2, 3].map(|n| pool.buffer(n * MIB).unwrap()).into();
    let addresses: Vec<_> = buffers.iter().map(Buffer::as_ptr).collect();
    for buffer in buffers {
        drop(buffer);
    }
    // 4 + 2 + 3 MiB are too much: the 4 MiB went.
    assert_eq!(pool.idle_bytes(), 5 * MIB);
    let kept = [2, 3].map(|n| pool.buffer(n * MIB).unwrap());
    assert_eq!(kept.each_ref().map(Buffer::as_ptr), addresses[1..]);
    assert_eq!(pool.idle_bytes(), 0);
}

#[test]
fn nothing_is_kept_beyond_the_limit_or_after_trim() {
    let none = Pool::new(0);
    drop(none.buffer(MIB).unwrap());
    assert_eq!(none.idle_bytes(), 0);

    let pool = Pool::new(64 * MIB);
    drop(pool.buffer(5 * MIB).unwrap());
    assert_eq!(pool.idle_bytes(), 5 * MIB);
    pool.trim();
    assert_eq!(pool.idle_bytes(), 0);
}

#[test]
fn what_cannot_be_had_is_an_error() {
    let pool = Pool::new(MIB);
    assert!(matches!(
        pool.buffer(usize::MAX),
        Err(MemoryError::TooLarge { len: usize::MAX })
    ));
    let len = 1 << 60;
    let error = pool.buffer(len).unwrap_err();
    assert!(error.to_string().contains(&len.to_string()), "{error}");
}

#[test]
fn buffers_go_from_thread_to_thread() {
    let pool = Pool::new(64 * MIB);
    let filled: Vec<Buffer> = std::thread::scope(|scope| {
        let fill = |byte| {
            let pool = &pool;
            scope.spawn(move || {
                for _ in 0..20 {
                    drop(pool.buffer(MIB).unwrap());
                }
                let mut buffer = pool.buffer(MIB).unwrap();
                buffer.as_mut_slice().fill(byte);
                buffer
            })
        };
        let threads: Vec<_> = (0..4).map(fill).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    for (byte, buffer) in (0..).zip(&filled) {
        assert!(buffer.as_slice().iter().all(|&b| b == byte));
    }
}

#[test]
fn a_pool_that_may_keep_less_gives_the_rest_back() {
    let pool = Pool::new(4 * MIB);
    let both = [MIB, MIB].map(|len| pool.buffer(len).unwrap());
    drop(both);
    assert_eq!(pool.idle_bytes(), 2 * MIB);
    pool.keep_at_most(MIB);
    assert_eq!(pool.idle_bytes(), MIB);
    drop([MIB, MIB].map(|len| pool.buffer(len).unwrap()));
    assert_eq!(pool.idle_bytes(), MIB);
}

#[test]
fn there_is_one_global_pool() {
    assert!(Arc::ptr_eq(Pool::global(), Pool::global()));
    let limit = treadle_memory::memory_limit();
    assert!(limit > 0 && limit < 1 << 62, "{limit}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Buffers never overlap, keep their content, and idle memory stays within its limit.
    #[test]
    fn buffers_are_independent(
        steps in prop::collection::vec((0..4 * MIB, any::<prop::sample::Index>(), any::<bool>()), 1..60),
        limit in 0..12 * MIB,
    ) {
        let pool = Pool::new(limit);
        let mut held: Vec<(u8, Buffer)> = Vec::new();
        for (step, (len, which, give_back)) in steps.into_iter().enumerate() {
            if give_back && !held.is_empty() {
                drop(held.swap_remove(which.index(held.len())));
            } else {
                let mut buffer = pool.buffer(len).unwrap();
                prop_assert_eq!(buffer.as_ptr().addr() % 64, 0);
                // The ends are where neighbours would meet.
                let mark = step as u8;
                for end in [0, len.saturating_sub(1)] {
                    if let Some(byte) = buffer.as_mut_slice().get_mut(end) {
                        *byte = mark;
                    }
                }
                held.push((mark, buffer));
            }
            prop_assert!(pool.idle_bytes() <= limit);
            let mut ranges: Vec<_> = held
                .iter()
                .filter(|(_, buffer)| !buffer.is_empty())
                .map(|(_, buffer)| buffer.as_slice().as_ptr_range())
                .collect();
            ranges.sort_by_key(|range| range.start);
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
            for (mark, buffer) in &held {
                let bytes = buffer.as_slice();
                prop_assert!([bytes.first(), bytes.last()].into_iter().flatten().all(|b| b == mark));
            }
        }
    }
}
