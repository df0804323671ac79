//! From Dask's keys to task ids.

use hashbrown::HashTable;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use treadle_graph::TaskId;

/// The keys of a graph, each with its task id: 8 + 8 bytes a key and about 5 bytes of index.
pub struct Keys {
    keys: Vec<Py<PyAny>>,
    hashes: Vec<ffi::Py_hash_t>,
    index: HashTable<u32>,
}

#[expect(clippy::len_without_is_empty, reason = "nobody asks")]
impl Keys {
    /// No keys, with room for so many.
    pub fn with_capacity(keys: usize) -> Self {
        Keys {
            keys: Vec::with_capacity(keys),
            hashes: Vec::with_capacity(keys),
            index: HashTable::with_capacity(keys),
        }
    }

    /// Their number.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// The key of a task.
    pub fn get(&self, task: TaskId) -> &Py<PyAny> {
        &self.keys[task.index()]
    }

    /// Adds a key that is known to be new. Its task id is the number of keys before it.
    ///
    /// # Errors
    /// What the key's `__hash__` raises.
    #[inline]
    pub fn push(&mut self, key: Borrowed<'_, '_, PyAny>) -> PyResult<TaskId> {
        let hash = hash(key)?;
        let id = self.keys.len() as u32;
        self.keys.push(key.to_owned().unbind());
        self.hashes.push(hash);
        let hashes = &self.hashes;
        self.index
            .insert_unique(spread(hash), id, |&i| spread(hashes[i as usize]));
        Ok(TaskId(id))
    }

    /// The task of `key`.
    ///
    /// # Errors
    /// What the key's `__hash__` or `__eq__` raises; a key that cannot be hashed is a `TypeError`.
    #[inline]
    pub fn find(&self, key: Borrowed<'_, '_, PyAny>) -> PyResult<Option<TaskId>> {
        let hash = hash(key)?;
        let mut failed = None;
        let found = self.index.find(spread(hash), |&i| {
            let candidate = &self.keys[i as usize];
            if candidate.as_ptr() == key.as_ptr() {
                return true;
            }
            if self.hashes[i as usize] != hash {
                return false;
            }
            match equal(candidate.bind_borrowed(key.py()), key) {
                Ok(equal) => equal,
                Err(error) => {
                    failed = Some(error);
                    true
                }
            }
        });
        match failed {
            Some(error) => Err(error),
            None => Ok(found.map(|&i| TaskId(i))),
        }
    }
}

/// A hash for a table of Rust's. Python's hashes of neighbouring keys differ in few bits; the table wants
/// all of them mixed.
#[inline]
pub fn spread(hash: ffi::Py_hash_t) -> u64 {
    let mixed = (hash as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 32)
}

#[inline]
fn hash(key: Borrowed<'_, '_, PyAny>) -> PyResult<ffi::Py_hash_t> {
    // SAFETY: the key is a live object and the thread is attached.
    match unsafe { ffi::PyObject_Hash(key.as_ptr()) } {
        -1 => Err(PyErr::fetch(key.py())),
        hash => Ok(hash),
    }
}

/// `a == b`. Most keys are tuples of a name and some numbers, made anew wherever they are used:
/// their items are compared here, which takes half as long as asking the tuple.
#[inline]
fn equal(a: Borrowed<'_, '_, PyAny>, b: Borrowed<'_, '_, PyAny>) -> PyResult<bool> {
    if let (Ok(a), Ok(b)) = (a.cast_exact::<PyTuple>(), b.cast_exact::<PyTuple>()) {
        if a.len() != b.len() {
            return Ok(false);
        }
        for (a, b) in a.iter_borrowed().zip(b.iter_borrowed()) {
            if a.as_ptr() != b.as_ptr() && !equal_objects(a, b)? {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    equal_objects(a, b)
}

#[inline]
fn equal_objects(a: Borrowed<'_, '_, PyAny>, b: Borrowed<'_, '_, PyAny>) -> PyResult<bool> {
    // SAFETY: both are live objects and the thread is attached.
    match unsafe { ffi::PyObject_RichCompareBool(a.as_ptr(), b.as_ptr(), ffi::Py_EQ) } {
        -1 => Err(PyErr::fetch(a.py())),
        result => Ok(result == 1),
    }
}
