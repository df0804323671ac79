//! Lists that mostly have one element, or none.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};

/// A list in two words: its only element lies in it, several lie on the heap.
#[derive(Clone, Debug)]
pub(crate) enum Few<T> {
    None,
    One(T),
    #[allow(
        clippy::box_collection,
        reason = "a vector would make each list twice as long"
    )]
    Many(Box<Vec<T>>),
}

impl<T> Few<T> {
    pub(crate) fn push(&mut self, element: T) {
        *self = match core::mem::replace(self, Self::None) {
            Self::None => Self::One(element),
            Self::One(first) => Self::Many(Box::new(vec![first, element])),
            Self::Many(mut elements) => {
                elements.push(element);
                Self::Many(elements)
            }
        };
    }

    /// Takes an element out; the others stay in order.
    ///
    /// # Panics
    /// If there is none at `index`.
    pub(crate) fn remove(&mut self, index: usize) -> T {
        match core::mem::replace(self, Self::None) {
            Self::None => panic!("no element at {index}"),
            Self::One(element) => {
                assert_eq!(index, 0, "the only element is the first");
                element
            }
            Self::Many(mut elements) => {
                let element = elements.remove(index);
                if !elements.is_empty() {
                    *self = Self::Many(elements);
                }
                element
            }
        }
    }

    /// Takes those elements out that do not meet a condition.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        match self {
            Self::None => {}
            Self::One(element) => {
                if !keep(element) {
                    *self = Self::None;
                }
            }
            Self::Many(elements) => {
                elements.retain(keep);
                if elements.is_empty() {
                    *self = Self::None;
                }
            }
        }
    }

    /// Bytes on the heap.
    pub(crate) fn memory(&self) -> usize {
        match self {
            Self::None | Self::One(_) => 0,
            Self::Many(elements) => size_of::<Vec<T>>() + elements.capacity() * size_of::<T>(),
        }
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match self {
            Self::None => &[],
            Self::One(element) => core::slice::from_ref(element),
            Self::Many(elements) => elements,
        }
    }
}

impl<T> DerefMut for Few<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::None => &mut [],
            Self::One(element) => core::slice::from_mut(element),
            Self::Many(elements) => elements,
        }
    }
}

impl<'a, T> IntoIterator for &'a Few<T> {
    type Item = &'a T;
    type IntoIter = core::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn behaves_like_a_vector(steps in prop::collection::vec((0u8..4, 0u32..8), 0..60)) {
            let mut few = Few::None;
            let mut model = Vec::new();
            for (step, number) in steps {
                match step {
                    0 | 1 => {
                        few.push(number);
                        model.push(number);
                    }
                    2 if !model.is_empty() => {
                        let index = number as usize % model.len();
                        prop_assert_eq!(few.remove(index), model.remove(index));
                    }
                    _ => {
                        few.retain(|element| *element != number);
                        model.retain(|element| *element != number);
                    }
                }
                prop_assert_eq!(&few[..], &model[..]);
            }
        }
    }
}
