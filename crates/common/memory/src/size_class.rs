use crate::MemoryError;

/// The length to reserve for `len` bytes, at least `smallest`: eight classes between powers of
/// two, so that slightly different lengths can follow each other in the same memory and at most
/// an eighth of it is wasted. A multiple of the page size.
pub(crate) fn size_class(len: usize, smallest: usize) -> Result<usize, MemoryError> {
    let wanted = len.max(smallest);
    let step = (1 << wanted.ilog2() >> 3).max(rustix::param::page_size());
    wanted
        .checked_next_multiple_of(step)
        .filter(|&class| isize::try_from(class).is_ok())
        .ok_or(MemoryError::TooLarge { len })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_wastes_at_most_an_eighth() {
        let smallest = 1 << 20;
        let mut len = smallest;
        while len < 1 << 40 {
            for len in [len - 1, len, len + 1, len + len / 7, len + len / 3] {
                let class = size_class(len, smallest).unwrap();
                let wanted = len.max(smallest);
                assert!(class >= wanted, "{len}");
                assert!(class - wanted <= wanted / 8, "{len} in {class}");
                assert_eq!(class % rustix::param::page_size(), 0);
                assert_eq!(size_class(class, smallest).unwrap(), class);
            }
            len *= 2;
        }
    }

    #[test]
    fn what_cannot_be_addressed_is_refused() {
        for len in [usize::MAX, isize::MAX as usize + 1] {
            assert_eq!(size_class(len, 1), Err(MemoryError::TooLarge { len }));
        }
    }
}
