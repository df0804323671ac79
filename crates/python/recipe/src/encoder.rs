//! What a connection's recipes share: the table of definitions.

use crate::class::Class;
use crate::definition::Kind;
use crate::guard::Guard;
use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::PyType;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use treadle_interpreter::lock;

/// So many functions and classes are known by identity, and so many constants are remembered as
/// seen. Past that, they are forgotten and looked up anew.
const REMEMBERED: usize = 1 << 14;

/// A definition to be sent, before the first recipe that uses it.
#[derive(Clone, Debug)]
pub struct NewDefinition {
    /// What recipes call it; counted from 0, never used twice.
    pub number: u32,
    /// For people: a function's `dask.utils.funcname`, else the name of the object's type.
    pub name: String,
    /// What a worker makes a [`Definition`](crate::Definition) of.
    pub bytes: Bytes,
}

/// The definitions of a connection. Shared by the threads that submit; its lock is never held while
/// Python runs.
#[derive(Default)]
pub struct Encoder(Mutex<Tables>);

#[derive(Default)]
struct Tables {
    by_content: HashMap<u128, u32>,
    /// Hashes of what is in `by_content`, by number.
    contents: HashMap<u32, u128>,
    /// Hashes of constants that have occurred once. Most never do again, so they are not defined.
    seen: HashSet<u128>,
    /// Callables by address. The references keep the addresses from being used again.
    by_identity: HashMap<usize, Known>,
    /// What is known of classes, by address.
    classes: HashMap<usize, (Class, Py<PyType>)>,
    unsent: Vec<NewDefinition>,
    next: u32,
    /// Submissions that are being encoded, by the order in which they began.
    open: BTreeSet<u64>,
    began: u64,
    /// Numbers that are not given to new recipes any more; those of submissions that began before
    /// the number in front may have them.
    withdrawn: Vec<(u64, Vec<u32>)>,
}

impl Tables {
    fn take_withdrawn(&mut self) -> Vec<u32> {
        let oldest = self.open.first().copied().unwrap_or(u64::MAX);
        let free = self
            .withdrawn
            .extract_if(.., |(before, _)| *before <= oldest);
        free.flat_map(|(_, numbers)| numbers).collect()
    }
}

/// A callable that was defined.
struct Known {
    object: Py<PyAny>,
    guard: Arc<Guard>,
    number: u32,
}

/// When to define what is pickled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    Now,
    /// Once it occurs again.
    Again,
}

impl Encoder {
    /// With no definitions.
    pub fn new() -> Self {
        Self::default()
    }

    /// The definitions that were not taken yet. Whoever sends recipes takes them first and sends
    /// them ahead, all under the lock that puts the connection's messages in order: then another
    /// thread's recipes may use them, too.
    pub fn take_definitions(&self) -> Vec<NewDefinition> {
        std::mem::take(&mut self.lock().unsent)
    }

    /// A submission begins to be encoded. To be ended with [`Encoder::end`] when its last recipe was
    /// sent.
    pub fn begin(&self) -> u64 {
        let tables = &mut *self.lock();
        tables.began += 1;
        tables.open.insert(tables.began);
        tables.began
    }

    /// A submission has ended. Returns withdrawn numbers that no recipe has that is still to be sent.
    pub fn end(&self, submission: u64) -> Vec<u32> {
        let tables = &mut *self.lock();
        tables.open.remove(&submission);
        tables.take_withdrawn()
    }

    /// Forgets definitions: what needs them again is defined anew. Returns withdrawn numbers, now or
    /// earlier, that no recipe has that is still to be sent.
    pub fn withdraw(&self, numbers: Vec<u32>) -> Vec<u32> {
        let set: HashSet<u32> = numbers.iter().copied().collect();
        // Objects are dropped after the lock, since that may run Python.
        let (free, _forgotten) = {
            let tables = &mut *self.lock();
            for number in &numbers {
                if let Some(hash) = tables.contents.remove(number) {
                    tables.by_content.remove(&hash);
                }
            }
            let by_identity = &mut tables.by_identity;
            let known = by_identity.extract_if(|_, known| set.contains(&known.number));
            let forgotten: Vec<_> = known.collect();
            tables.withdrawn.push((tables.began + 1, numbers));
            (tables.take_withdrawn(), forgotten)
        };
        free
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        lock(&self.0)
    }

    /// The number of the content, which it gets now if that is when it shall be defined.
    pub(crate) fn define(
        &self,
        kind: Kind,
        content: &[u8],
        when: When,
        name: impl FnOnce() -> String,
    ) -> Option<u32> {
        let hash = hash(kind, content);
        {
            let mut tables = self.lock();
            if let Some(&number) = tables.by_content.get(&hash) {
                return Some(number);
            }
            if when == When::Again && !tables.seen.remove(&hash) {
                if tables.seen.len() >= REMEMBERED {
                    tables.seen.clear();
                }
                tables.seen.insert(hash);
                return None;
            }
        }
        // A name may be asked of Python.
        let name = name();
        let mut bytes = Vec::with_capacity(1 + content.len());
        bytes.push(kind as u8);
        bytes.extend_from_slice(content);
        let tables = &mut *self.lock();
        let number = *tables.by_content.entry(hash).or_insert_with(|| {
            let number = tables.next;
            tables.next += 1;
            let bytes = bytes.into();
            tables.contents.insert(number, hash);
            tables.unsent.push(NewDefinition {
                number,
                name,
                bytes,
            });
            number
        });
        Some(number)
    }

    /// What is known of an object's class.
    ///
    /// # Errors
    /// What Python raises while it is looked at.
    pub(crate) fn class_of(&self, object: &Bound<'_, PyAny>) -> PyResult<Class> {
        let address = object.get_type_ptr() as usize;
        if let Some((class, _)) = self.lock().classes.get(&address) {
            return Ok(*class);
        }
        let known = (Class::of(&object.get_type())?, object.get_type().unbind());
        let class = known.0;
        let _forgotten = {
            let classes = &mut self.lock().classes;
            let forgotten = match classes.len() >= REMEMBERED {
                true => std::mem::take(classes),
                false => HashMap::new(),
            };
            (forgotten, classes.insert(address, known))
        };
        Ok(class)
    }

    /// The number of a callable that was defined before and is still what it was.
    ///
    /// # Errors
    /// What Python raises while its attributes are read.
    pub(crate) fn known(&self, object: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
        let found = self
            .lock()
            .by_identity
            .get(&(object.as_ptr() as usize))
            .map(|known| (known.guard.clone(), known.number));
        // To look whether it holds runs Python, so the lock was let go.
        let Some((guard, number)) = found else {
            return Ok(None);
        };
        Ok(guard.holds(object)?.then_some(number))
    }

    /// Remembers the number of a callable.
    pub(crate) fn remember(&self, object: &Bound<'_, PyAny>, guard: Guard, number: u32) {
        let known = Known {
            object: object.clone().unbind(),
            guard: Arc::new(guard),
            number,
        };
        let forgotten = {
            let mut tables = self.lock();
            if !tables.contents.contains_key(&number) {
                // Withdrawn meanwhile.
                return;
            }
            let forgotten = match tables.by_identity.len() >= REMEMBERED {
                true => std::mem::take(&mut tables.by_identity),
                false => HashMap::new(),
            };
            let address = known.object.as_ptr() as usize;
            (forgotten, tables.by_identity.insert(address, known))
        };
        drop(forgotten);
    }
}

/// A hash of content: 128 bits of BLAKE3, so that nobody can make two contents of one hash.
pub(crate) fn hash(kind: Kind, content: &[u8]) -> u128 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[kind as u8]);
    hasher.update(content);
    shorten(&hasher.finalize())
}

/// The first half of a hash.
pub(crate) fn shorten(hash: &blake3::Hash) -> u128 {
    let half: [u8; 16] = hash.as_bytes()[..16].try_into().expect("half of 32 bytes");
    u128::from_be_bytes(half)
}

/// `dask.utils.funcname`, or what can be said if that fails.
pub(crate) fn function_name(function: &Bound<'_, PyAny>) -> String {
    let name = function
        .py()
        .import("dask.utils")
        .and_then(|utils| utils.call_method1("funcname", (function,)))
        .and_then(|name| name.extract::<String>());
    name.unwrap_or_else(|_| class_name(function))
}

/// The name of an object's type.
pub(crate) fn class_name(object: &Bound<'_, PyAny>) -> String {
    // SAFETY: a type's name is text that lives as long as the type.
    let name = unsafe { std::ffi::CStr::from_ptr((*object.get_type_ptr()).tp_name) };
    let name = name.to_string_lossy();
    name.rsplit('.').next().unwrap_or_default().to_owned()
}
