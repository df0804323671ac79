//! The inputs of one task, numbered in the order in which they are met.

use hashbrown::HashTable;
use pyo3::ffi;
use pyo3::prelude::*;
use treadle_dask::spread;

type Object<'a, 'py> = Borrowed<'a, 'py, PyAny>;

/// What a task reads.
#[derive(Clone, Debug)]
pub enum Input<'py> {
    /// The value of a key.
    Key(Bound<'py, PyAny>),
    /// A constant of the submission, by its position in
    /// [`Submission::constants`](crate::Submission::constants).
    Constant(u32),
}

/// Inputs, and where they are.
#[derive(Default)]
pub(crate) struct Inputs<'py> {
    inputs: Vec<Input<'py>>,
    /// Of the keys; 0 for constants.
    hashes: Vec<ffi::Py_hash_t>,
    /// Of keys, once there are many.
    index: HashTable<u32>,
}

impl<'py> Inputs<'py> {
    /// Up to so many are searched one by one.
    const FEW: usize = 12;

    pub(crate) fn clear(&mut self) {
        self.inputs.clear();
        self.hashes.clear();
        self.index.clear();
    }

    pub(crate) fn as_slice(&self) -> &[Input<'py>] {
        &self.inputs
    }

    /// The number of a key.
    ///
    /// # Errors
    /// What its `__hash__` or `__eq__` raises.
    pub(crate) fn key(&mut self, key: Object<'_, 'py>) -> PyResult<u32> {
        let hash = key.hash()?;
        let (inputs, hashes) = (&self.inputs, &self.hashes);
        let mut failed = None;
        let mut is_it = |&number: &u32| {
            let number = number as usize;
            let Input::Key(candidate) = &inputs[number] else {
                return false;
            };
            if candidate.as_ptr() == key.as_ptr() {
                return true;
            }
            hashes[number] == hash
                && candidate.eq(key).unwrap_or_else(|error| {
                    failed = Some(error);
                    true
                })
        };
        let found = if inputs.len() <= Self::FEW {
            (0..inputs.len() as u32).find(|number| is_it(number))
        } else {
            self.index.find(spread(hash), is_it).copied()
        };
        match (failed, found) {
            (Some(error), _) => Err(error),
            (None, Some(number)) => Ok(number),
            (None, None) => {
                let number = self.inputs.len() as u32;
                self.inputs.push(Input::Key(key.to_owned()));
                self.hashes.push(hash);
                self.file(number);
                Ok(number)
            }
        }
    }

    /// The number of a constant.
    pub(crate) fn constant(&mut self, constant: u32) -> u32 {
        let is_it = |input: &Input<'_>| matches!(input, Input::Constant(it) if *it == constant);
        let found = self.inputs.iter().position(is_it);
        found.unwrap_or_else(|| {
            self.inputs.push(Input::Constant(constant));
            self.hashes.push(0);
            self.file(self.inputs.len() as u32 - 1);
            self.inputs.len() - 1
        }) as u32
    }

    /// Enters an input into the index, and those before it when it is the first.
    fn file(&mut self, number: u32) {
        if number as usize >= Self::FEW {
            let first = if number as usize == Self::FEW {
                0
            } else {
                number
            };
            let hashes = &self.hashes;
            for number in first..=number {
                let rehash = |&number: &u32| spread(hashes[number as usize]);
                self.index
                    .insert_unique(spread(hashes[number as usize]), number, rehash);
            }
        }
    }
}
