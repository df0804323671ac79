//! Keys of calls: the name of the function and a hash of what it is called with.
//!
//! Arguments of the built-in types are hashed natively, with their types: `1`, `1.0`, `True` and
//! `"1"` are different. Others are hashed as `treadle.pickling._tokens` has it. The keys are not those
//! that distributed would give, but equal calls have equal keys, in any process.

use crate::encoder::{function_name, shorten};
use crate::guard::Guard;
use crate::key::encode_key;
use crate::plain::put_atom;
use crate::tag;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyFrozenSet, PyList, PySet, PySlice, PyString, PyTuple};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use treadle_dask::{Kind, Spec};
use treadle_interpreter::lock;
use treadle_types::value::{put_head, tag as plain};

type Object<'a, 'py> = Borrowed<'a, 'py, PyAny>;

/// Nested deeper than this, arguments are left to Dask, which knows how to treat those that contain
/// themselves.
const DEEPEST: usize = 32;
/// So many functions are remembered.
const REMEMBERED: usize = 1 << 12;

/// What is known of a function.
pub struct FunctionToken {
    /// `dask.utils.funcname`
    pub name: String,
    /// `dask.base.tokenize`
    token: String,
    /// For calls without keyword arguments.
    prefix: [u8; 16],
}

/// Tokens of functions, by identity: those that are alive and still what they were.
#[derive(Default)]
pub struct FunctionTokens(Mutex<HashMap<usize, Entry>>);

struct Entry {
    /// A weak reference, so that the memo keeps nothing alive.
    function: Py<PyAny>,
    guard: Guard,
    token: Arc<FunctionToken>,
}

impl FunctionTokens {
    /// The token of a function.
    ///
    /// # Errors
    /// What Python raises; a `TokenizationError` where Dask is configured to insist on tokens that
    /// are the same in every process.
    pub fn get(&self, function: &Bound<'_, PyAny>) -> PyResult<Arc<FunctionToken>> {
        let py = function.py();
        let address = function.as_ptr() as usize;
        // Taken out, since Python may run while it is compared.
        let entry = self.lock().remove(&address);
        if let Some(entry) = entry {
            let alive = entry.function.bind(py).call0()?;
            if alive.is(function) && entry.guard.holds(function)? {
                let token = entry.token.clone();
                self.lock().insert(address, entry);
                return Ok(token);
            }
        }
        let token = Arc::new(FunctionToken::new(function)?);
        if let Some(guard) = Guard::of(function)? {
            let weak = py.import("weakref")?.getattr("ref")?.call1((function,));
            if let Ok(function) = weak {
                let entry = Entry {
                    function: function.unbind(),
                    guard,
                    token: token.clone(),
                };
                let forgotten = {
                    let mut entries = self.lock();
                    let forgotten = match entries.len() >= REMEMBERED {
                        true => std::mem::take(&mut *entries),
                        false => HashMap::new(),
                    };
                    (forgotten, entries.insert(address, entry))
                };
                drop(forgotten);
            }
        }
        Ok(token)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<usize, Entry>> {
        lock(&self.0)
    }
}

impl FunctionToken {
    fn new(function: &Bound<'_, PyAny>) -> PyResult<Self> {
        let token = tokenize(function)?;
        let mut bytes = Vec::with_capacity(64);
        put_head(plain::STR, token.len(), &mut bytes);
        bytes.extend_from_slice(token.as_bytes());
        Ok(FunctionToken {
            name: function_name(function),
            token,
            prefix: digest(&bytes),
        })
    }

    /// What the keys of calls with these keyword arguments begin from.
    ///
    /// # Errors
    /// What Dask's `tokenize` raises.
    pub fn calls(&self, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Calls> {
        let mut bytes = Vec::with_capacity(64);
        if let Some(kwargs) = kwargs.filter(|kwargs| !kwargs.is_empty()) {
            put_head(plain::STR, self.token.len(), &mut bytes);
            bytes.extend_from_slice(self.token.as_bytes());
            put(kwargs.as_any().as_borrowed(), &mut bytes, 0)?;
            return Ok(Calls {
                prefix: digest(&bytes),
                bytes,
            });
        }
        Ok(Calls {
            prefix: self.prefix,
            bytes,
        })
    }
}

/// Keys of calls that differ in their positional arguments.
pub struct Calls {
    prefix: [u8; 16],
    /// Used again for each call.
    bytes: Vec<u8>,
}

impl Calls {
    /// The key of a call: `name-<32 hexadecimal digits>`.
    ///
    /// # Errors
    /// What Dask's `tokenize` raises.
    pub fn key<'py>(
        &mut self,
        py: Python<'py>,
        name: &str,
        args: &[Bound<'py, PyAny>],
    ) -> PyResult<Bound<'py, PyString>> {
        self.bytes.clear();
        self.bytes.extend_from_slice(&self.prefix);
        for argument in args {
            put(argument.as_borrowed(), &mut self.bytes, 0)?;
        }
        let digest = digest(&self.bytes);
        self.bytes.clear();
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(b'-');
        for byte in digest {
            const DIGITS: &[u8; 16] = b"0123456789abcdef";
            self.bytes.push(DIGITS[usize::from(byte >> 4)]);
            self.bytes.push(DIGITS[usize::from(byte & 15)]);
        }
        let text = std::str::from_utf8(&self.bytes).expect("a name and digits");
        Ok(PyString::new(py, text))
    }
}

fn digest(bytes: &[u8]) -> [u8; 16] {
    shorten(&blake3::hash(bytes)).to_be_bytes()
}

/// Writes what an argument is, so that different ones are different bytes.
fn put(object: Object<'_, '_>, into: &mut Vec<u8>, depth: usize) -> PyResult<()> {
    if put_atom(object, into) {
        return Ok(());
    }
    if depth == DEEPEST {
        return put_token(object, into);
    }
    if let Ok(items) = object.cast_exact::<PyTuple>() {
        put_head(plain::TUPLE, items.len(), into);
        for item in items.iter_borrowed() {
            put(item, into, depth + 1)?;
        }
    } else if let Ok(items) = object.cast_exact::<PyList>() {
        let items: Vec<Bound<'_, PyAny>> = items.iter().collect();
        put_head(plain::LIST, items.len(), into);
        for item in items {
            put(item.as_borrowed(), into, depth + 1)?;
        }
    } else if let Ok(entries) = object.cast_exact::<PyDict>() {
        let entries: Vec<_> = entries.iter().collect();
        let written = entries.iter().map(|(key, value)| {
            let mut bytes = Vec::new();
            put(key.as_borrowed(), &mut bytes, depth + 1)?;
            put(value.as_borrowed(), &mut bytes, depth + 1)?;
            Ok(bytes)
        });
        put_sorted(plain::DICT, written.collect::<PyResult<_>>()?, into);
    } else if let Ok(items) = object.cast_exact::<PySet>() {
        put_set(tag::SET, items.iter().collect(), into, depth)?;
    } else if let Ok(items) = object.cast_exact::<PyFrozenSet>() {
        put_set(tag::FROZENSET, items.iter().collect(), into, depth)?;
    } else if let Ok(slice) = object.cast_exact::<PySlice>() {
        into.push(tag::SLICE);
        for name in ["start", "stop", "step"] {
            put(slice.getattr(name)?.as_borrowed(), into, depth + 1)?;
        }
    } else if Spec::get(object.py())?.kind(object) == Kind::Reference {
        let key = object.getattr(intern!(object.py(), "key"))?;
        into.push(tag::REFERENCE);
        encode_key(key.as_borrowed(), into)?;
        // Two futures of one key are different, to distributed.
        match object.getattr_opt(intern!(object.py(), "_id"))? {
            Some(id) => put(id.as_borrowed(), into, depth + 1)?,
            None => into.push(plain::NONE),
        }
    } else {
        return put_token(object, into);
    }
    Ok(())
}

fn put_set(
    tag: u8,
    items: Vec<Bound<'_, PyAny>>,
    into: &mut Vec<u8>,
    depth: usize,
) -> PyResult<()> {
    let written = items.iter().map(|item| {
        let mut bytes = Vec::new();
        put(item.as_borrowed(), &mut bytes, depth + 1)?;
        Ok(bytes)
    });
    put_sorted(tag, written.collect::<PyResult<_>>()?, into);
    Ok(())
}

/// What has no order is put into one.
fn put_sorted(tag: u8, mut items: Vec<Vec<u8>>, into: &mut Vec<u8>) {
    items.sort_unstable();
    put_head(tag, items.len(), into);
    for item in items {
        into.extend_from_slice(&item);
    }
}

fn put_token(object: Object<'_, '_>, into: &mut Vec<u8>) -> PyResult<()> {
    let token = tokenize(&object)?;
    put_head(tag::TOKEN, token.len(), into);
    into.extend_from_slice(token.as_bytes());
    Ok(())
}

fn tokenize(object: &Bound<'_, PyAny>) -> PyResult<String> {
    static TOKENIZE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = object.py();
    let tokenize = TOKENIZE.import(py, "treadle.pickling._tokens", "tokenize")?;
    tokenize.call1((object,))?.extract()
}
