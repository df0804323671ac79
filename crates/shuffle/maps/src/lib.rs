//! Sets of maps: as ranges while these are few, and as bits otherwise. 40,000 maps that come in any
//! order never take more than 5 KB, and those that are all there take one range.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

use alloc::vec::Vec;

use treadle_types::Runs;

/// A set of maps, or of other numbers from 0 on.
#[derive(Clone, Debug)]
pub struct MapSet(Form);

#[derive(Clone, Debug)]
enum Form {
    Ranges(Runs),
    /// Number `n` is bit `n % 64` of word `n / 64`.
    Bits(Vec<u64>),
}

/// So many ranges are few.
const FEW: usize = 32;

impl MapSet {
    /// Nothing.
    pub fn new() -> Self {
        Self(Form::Ranges(Runs::new()))
    }

    /// The numbers below this one.
    pub fn below(end: u32) -> Self {
        Self(Form::Ranges(Runs::range(0, u64::from(end))))
    }

    /// Adds a number.
    pub fn insert(&mut self, number: u32) {
        match &mut self.0 {
            Form::Ranges(runs) => {
                runs.insert(u64::from(number));
                if runs.ranges().len() > FEW {
                    self.0 = Form::Bits(bits_of(runs));
                }
            }
            Form::Bits(words) => {
                let at = number as usize / 64;
                if at >= words.len() {
                    // In ascending order it would be a range: this is seldom.
                    words.reserve_exact(at + 1 - words.len());
                    words.resize(at + 1, 0);
                }
                words[at] |= 1 << (number % 64);
            }
        }
    }

    /// Removes a number.
    pub fn remove(&mut self, number: u32) {
        match &mut self.0 {
            Form::Ranges(runs) => runs.remove(u64::from(number)),
            Form::Bits(words) => {
                if let Some(word) = words.get_mut(number as usize / 64) {
                    *word &= !(1 << (number % 64));
                }
            }
        }
    }

    /// Whether a number is there.
    pub fn contains(&self, number: u32) -> bool {
        match &self.0 {
            Form::Ranges(runs) => runs.contains(u64::from(number)),
            Form::Bits(words) => {
                let word = words.get(number as usize / 64);
                word.is_some_and(|word| word & (1 << (number % 64)) != 0)
            }
        }
    }

    /// The numbers, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let ranges = self.ranges().into_iter().flat_map(Runs::iter);
        let ranges = ranges.map(|number| number as u32);
        let words = (0_u32..).zip(self.bits());
        let words = words.filter(|(_, word)| **word != 0);
        ranges.chain(words.flat_map(|(at, &word)| {
            let mut rest = word;
            core::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros())?;
                rest &= rest - 1;
                Some(at * 64 + bit)
            })
        }))
    }

    /// The largest number.
    pub fn last(&self) -> Option<u32> {
        match &self.0 {
            Form::Ranges(runs) => runs.ranges().last().map(|&(_, end)| (end - 1) as u32),
            Form::Bits(words) => {
                let at = words.iter().rposition(|word| *word != 0)?;
                Some(at as u32 * 64 + 63 - words[at].leading_zeros())
            }
        }
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        match &self.0 {
            Form::Ranges(runs) => runs.len(),
            Form::Bits(words) => words.iter().map(|word| u64::from(word.count_ones())).sum(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.last().is_none()
    }

    /// Takes the form that needs less memory. Sets of which nothing more is expected are kept like this.
    pub fn shrink(&mut self) {
        let Form::Bits(words) = &mut self.0 else {
            return;
        };
        let mut carry = 0;
        let begins = words.iter().map(|&word| {
            let before = word << 1 | core::mem::replace(&mut carry, word >> 63);
            (word & !before).count_ones() as usize
        });
        if begins.sum::<usize>() * size_of::<(u64, u64)>() < words.len() * size_of::<u64>() {
            let mut runs = Runs::new();
            self.iter()
                .for_each(|number| runs.insert(u64::from(number)));
            self.0 = Form::Ranges(runs);
        } else {
            words.shrink_to_fit();
        }
    }

    /// As ranges.
    pub fn to_runs(&self) -> Runs {
        let mut runs = Runs::new();
        self.iter()
            .for_each(|number| runs.insert(u64::from(number)));
        runs
    }

    /// The ranges, unless it has another form.
    pub fn ranges(&self) -> Option<&Runs> {
        match &self.0 {
            Form::Ranges(runs) => Some(runs),
            Form::Bits(_) => None,
        }
    }

    /// The bits; none if it has another form.
    pub fn bits(&self) -> &[u64] {
        match &self.0 {
            Form::Ranges(_) => &[],
            Form::Bits(words) => words,
        }
    }

    /// From bits: number `n` is bit `n % 64` of word `n / 64`.
    pub fn from_bits(words: Vec<u64>) -> Self {
        Self(Form::Bits(words))
    }

    /// Bytes that it takes beside itself.
    pub fn footprint(&self) -> u64 {
        match &self.0 {
            Form::Ranges(runs) if runs.ranges().len() <= 1 => 0,
            Form::Ranges(runs) => size_of_val(runs.ranges()) as u64,
            Form::Bits(words) => (words.capacity() * size_of::<u64>()) as u64,
        }
    }
}

fn bits_of(runs: &Runs) -> Vec<u64> {
    let end = runs.ranges().last().map_or(0, |&(_, end)| end);
    let mut words = alloc::vec![0; end.div_ceil(64) as usize];
    for number in runs.iter() {
        words[number as usize / 64] |= 1 << (number % 64);
    }
    words
}

impl Default for MapSet {
    fn default() -> Self {
        Self::new()
    }
}

/// Ranges up to `u32::MAX`.
impl From<Runs> for MapSet {
    fn from(runs: Runs) -> Self {
        Self(Form::Ranges(runs))
    }
}

impl PartialEq for MapSet {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Form::Ranges(one), Form::Ranges(other)) => one == other,
            _ => self.iter().eq(other.iter()),
        }
    }
}

impl Eq for MapSet {}

impl FromIterator<u32> for MapSet {
    fn from_iter<T: IntoIterator<Item = u32>>(numbers: T) -> Self {
        let mut set = Self::new();
        numbers.into_iter().for_each(|number| set.insert(number));
        set
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_does_what_a_set_does(
            numbers in prop::collection::vec((0..600_u32, any::<bool>()), 0..400),
            shrinks in any::<bool>(),
        ) {
            let (mut set, mut model) = (MapSet::new(), BTreeSet::new());
            for (number, is_added) in numbers {
                if is_added {
                    set.insert(number);
                    model.insert(number);
                } else {
                    set.remove(number);
                    model.remove(&number);
                }
                prop_assert_eq!(set.contains(number), is_added);
            }
            if shrinks {
                set.shrink();
            }
            prop_assert!(set.iter().eq(model.iter().copied()));
            prop_assert_eq!(set.len(), model.len() as u64);
            prop_assert_eq!(set.last(), model.last().copied());
            prop_assert_eq!(set.is_empty(), model.is_empty());
            let runs: Runs = model.iter().map(|&number| u64::from(number)).collect();
            prop_assert_eq!(set.to_runs(), runs.clone());
            prop_assert_eq!(MapSet::from(runs), set.clone());
            prop_assert_eq!(MapSet::from_bits(set.bits().to_vec()) == set, !set.bits().is_empty() || set.is_empty());
        }
    }

    #[test]
    fn it_is_never_much_larger_than_its_bits_and_one_range_when_all_are_there() {
        let mut set = MapSet::new();
        // Each number once, far from the one before.
        for number in (0..40_000_u32).map(|n| n * 7_919 % 40_000) {
            set.insert(number);
            assert!(set.footprint() <= 10_000, "{}", set.footprint());
        }
        set.shrink();
        assert_eq!((set.len(), set.footprint()), (40_000, 0));
    }
}
