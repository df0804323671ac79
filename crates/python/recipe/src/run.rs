//! Running recipes: bytes are decoded and called in one pass, without Dask's objects in between.

use crate::{key, pickle, scalar, tag};
use pyo3::exceptions::{PyRecursionError, PyRuntimeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyFrozenSet, PyList, PySet, PySlice, PyString, PyTuple};
use smallvec::SmallVec;
use treadle_interpreter::vectorcall;
use treadle_types::value::{DecodeError, Reader, tag as plain};

/// How deep expressions may be nested, in recipes that are written and in those that are run.
pub(crate) const DEEPEST: u32 = 400;

/// Runs a recipe: the value of the task. `inputs` are the values of its inputs, in their order;
/// `definitions` gives a definition's object by its number.
///
/// # Errors
/// What the task raises, with its own traceback; a `RuntimeError` where the bytes are no recipe, or
/// refer to inputs that are not there.
///
/// `own` makes the object of an input anew, by its number, for those that [`owned`] says; what is in
/// their places in `inputs` is not looked at.
pub fn execute<O, D>(
    py: Python<'_>,
    recipe: &[u8],
    inputs: &[Py<PyAny>],
    own: &O,
    definitions: &D,
) -> PyResult<Py<PyAny>>
where
    O: Fn(usize) -> PyResult<Py<PyAny>>,
    D: Fn(u32) -> PyResult<Py<PyAny>>,
{
    let mut run = Run {
        py,
        reader: Reader::new(recipe),
        inputs,
        own,
        definitions,
        locals: SmallVec::new(),
        depth: 0,
        is_plain: false,
    };
    if recipe.first() == Some(&tag::OWNED) {
        read_owned(&mut run.reader).map_err(malformed)?;
    }
    let value = run.expression()?;
    run.finish(value)
}

/// The input that a recipe is just another name of, if it is.
pub fn alias(recipe: &[u8]) -> Option<usize> {
    let mut reader = Reader::new(recipe);
    if reader.byte() != Ok(tag::INPUT) {
        return None;
    }
    let number = reader.varint().ok()?;
    (reader.remaining() == 0).then_some(number as usize)
}

/// The inputs that a recipe reads as objects of its own, by number; none where it cannot be read.
pub fn owned(recipe: &[u8]) -> SmallVec<[usize; 4]> {
    match recipe.first() {
        Some(&tag::OWNED) => read_owned(&mut Reader::new(recipe)).unwrap_or_default(),
        _ => SmallVec::new(),
    }
}

#[cold]
fn read_owned(reader: &mut Reader<'_>) -> Result<SmallVec<[usize; 4]>, DecodeError> {
    reader.byte()?;
    let count = reader.count()?;
    (0..count).map(|_| Ok(reader.varint()? as usize)).collect()
}

/// The object of a plain value.
///
/// # Errors
/// For bytes that are none, and what unpickling raises.
pub fn decode_value(py: Python<'_>, bytes: &[u8]) -> PyResult<Py<PyAny>> {
    let mut reader = Reader::new(bytes);
    let value = read_value(py, &mut reader)?;
    match reader.remaining() {
        0 => Ok(value),
        left => Err(malformed(DecodeError::Trailing(left))),
    }
}

/// Whether [`decode_value`] may unpickle something, and so run any code. It may say so of a value of which no
/// part is pickled.
pub fn may_unpickle(bytes: &[u8]) -> bool {
    bytes.contains(&treadle_types::value::tag::PICKLE)
}

/// Reads a plain value in front of other things.
pub(crate) fn read_value(py: Python<'_>, reader: &mut Reader<'_>) -> PyResult<Py<PyAny>> {
    let mut run = Run {
        py,
        reader: reader.clone(),
        inputs: &[],
        own: &|_| Err(malformed(DecodeError::Malformed(0))),
        definitions: &|_| Err(malformed(DecodeError::Malformed(0))),
        locals: SmallVec::new(),
        depth: 0,
        is_plain: true,
    };
    let value = run.expression()?;
    *reader = run.reader;
    Ok(value)
}

#[cold]
fn malformed(error: DecodeError) -> PyErr {
    PyRuntimeError::new_err(format!(
        "A task's recipe cannot be read ({error}). Run the same version of Treadle everywhere."
    ))
}

struct Run<'a, 'py, O, D> {
    py: Python<'py>,
    reader: Reader<'a>,
    inputs: &'a [Py<PyAny>],
    own: &'a O,
    definitions: &'a D,
    locals: SmallVec<[Option<Py<PyAny>>; 8]>,
    depth: u32,
    /// Whether only plain values are allowed.
    is_plain: bool,
}

impl<O, D> Run<'_, '_, O, D>
where
    O: Fn(usize) -> PyResult<Py<PyAny>>,
    D: Fn(u32) -> PyResult<Py<PyAny>>,
{
    fn finish(self, value: Py<PyAny>) -> PyResult<Py<PyAny>> {
        match self.reader.remaining() {
            0 => Ok(value),
            left => Err(malformed(DecodeError::Trailing(left))),
        }
    }

    #[inline]
    fn number(&mut self) -> PyResult<usize> {
        let number = self.reader.varint().map_err(malformed)?;
        Ok(number as usize)
    }

    #[inline]
    fn count(&mut self) -> PyResult<usize> {
        self.reader.count().map_err(malformed)
    }

    #[inline]
    fn definition(&mut self) -> PyResult<Py<PyAny>> {
        let at = self.reader.position();
        let number = self.reader.varint().map_err(malformed)?;
        let number = u32::try_from(number).map_err(|_| malformed(DecodeError::Malformed(at)))?;
        (self.definitions)(number)
    }

    #[cold]
    fn own(&mut self, at: usize) -> PyResult<Py<PyAny>> {
        let number = self.number()?;
        if number >= self.inputs.len() {
            return Err(malformed(DecodeError::Malformed(at)));
        }
        (self.own)(number)
    }

    /// Reads and evaluates one expression.
    fn expression(&mut self) -> PyResult<Py<PyAny>> {
        let py = self.py;
        let at = self.reader.position();
        let tag = self.reader.byte().map_err(malformed)?;
        // SAFETY: each call returns a new reference, or fails with an exception.
        let owned =
            |pointer| unsafe { Bound::from_owned_ptr_or_err(py, pointer).map(Bound::unbind) };
        match tag {
            plain::NONE => Ok(py.None()),
            plain::TRUE => Ok(true.into_pyobject(py)?.to_owned().into_any().unbind()),
            plain::FALSE => Ok(false.into_pyobject(py)?.to_owned().into_any().unbind()),
            plain::INT => {
                let value = self.reader.int().map_err(malformed)?;
                // SAFETY: attached.
                owned(unsafe { ffi::PyLong_FromLongLong(value) })
            }
            plain::FLOAT => {
                let value = self.reader.float().map_err(malformed)?;
                // SAFETY: attached.
                owned(unsafe { ffi::PyFloat_FromDouble(value) })
            }
            plain::STR => {
                let text = self.reader.str().map_err(malformed)?;
                Ok(PyString::new(py, text).into_any().unbind())
            }
            plain::BYTES => {
                let bytes = self.reader.blob().map_err(malformed)?;
                Ok(PyBytes::new(py, bytes).into_any().unbind())
            }
            plain::PICKLE => {
                let bytes = self.reader.blob().map_err(malformed)?;
                let scalar = scalar::unpickle(py, bytes);
                let value = scalar.unwrap_or_else(|| pickle::loads(py, bytes));
                value.map(Bound::unbind)
            }
            plain::TUPLE..=plain::DICT => self.nested(|run| run.container(tag)),
            _ if self.is_plain => Err(malformed(DecodeError::Malformed(at))),
            tag::INPUT => {
                let number = self.number()?;
                match self.inputs.get(number) {
                    Some(value) => Ok(value.clone_ref(py)),
                    None => Err(malformed(DecodeError::Malformed(at))),
                }
            }
            tag::LOCAL | tag::LAST => {
                let number = self.number()?;
                let value = match self.locals.get_mut(number) {
                    Some(local) if tag == tag::LAST => local.take(),
                    Some(local) => local.as_ref().map(|value| value.clone_ref(py)),
                    None => None,
                };
                value.ok_or_else(|| malformed(DecodeError::Malformed(at)))
            }
            tag::OWN => self.own(at),
            tag::DEFINITION => self.definition(),
            tag::ELLIPSIS => Ok(py.Ellipsis()),
            tag::CALL..=tag::APPLY => self.nested(|run| run.call(tag)),
            tag::SET | tag::FROZENSET => self.nested(|run| run.container(tag)),
            tag::SLICE => self.nested(Self::slice),
            tag::KEEP => self.nested(|run| {
                let value = run.expression()?;
                run.locals.push(Some(value.clone_ref(run.py)));
                Ok(value)
            }),
            tag::PROGRAM => self.nested(|run| {
                for _ in 0..run.count()? {
                    let value = run.expression()?;
                    run.locals.push(Some(value));
                }
                run.expression()
            }),
            tag::CUSTOM => self.nested(Self::custom),
            _ => Err(malformed(DecodeError::Malformed(at))),
        }
    }

    #[inline]
    fn nested(
        &mut self,
        evaluate: impl FnOnce(&mut Self) -> PyResult<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(too_deep());
        }
        let value = evaluate(self)?;
        self.depth -= 1;
        Ok(value)
    }

    #[inline(never)]
    fn container(&mut self, tag: u8) -> PyResult<Py<PyAny>> {
        let py = self.py;
        if tag == plain::DICT {
            let dict = PyDict::new(py);
            for _ in 0..self.count()? {
                let key = self.expression()?;
                dict.set_item(key, self.expression()?)?;
            }
            return Ok(dict.into_any().unbind());
        }
        let count = self.count()?;
        // No half-filled list, which tasks that run meanwhile could find, and no trust in the count.
        let mut items = SmallVec::<[Py<PyAny>; 8]>::with_capacity(count.min(1024));
        for _ in 0..count {
            items.push(self.expression()?);
        }
        Ok(match tag {
            plain::TUPLE => PyTuple::new(py, items)?.into_any().unbind(),
            plain::LIST => PyList::new(py, items)?.into_any().unbind(),
            tag::SET => PySet::new(py, items)?.into_any().unbind(),
            _ => PyFrozenSet::new(py, items)?.into_any().unbind(),
        })
    }

    #[inline(never)]
    fn slice(&mut self) -> PyResult<Py<PyAny>> {
        let (start, stop, step) = (self.expression()?, self.expression()?, self.expression()?);
        // SAFETY: three live objects; the result is a new reference, or null with an exception.
        let slice = unsafe {
            let slice = ffi::PySlice_New(start.as_ptr(), stop.as_ptr(), step.as_ptr());
            Bound::from_owned_ptr_or_err(self.py, slice)?
        };
        Ok(slice.cast_into::<PySlice>()?.into_any().unbind())
    }

    #[inline(never)]
    fn call(&mut self, tag: u8) -> PyResult<Py<PyAny>> {
        let function = if tag == tag::APPLY {
            self.expression()?
        } else {
            self.definition()?
        };
        let names = match tag {
            tag::CALL => None,
            tag::CALL_NAMED => Some(self.definition()?),
            _ => match self.number()? {
                0 => None,
                number => {
                    let number = u32::try_from(number - 1)
                        .map_err(|_| malformed(DecodeError::Malformed(self.reader.position())))?;
                    Some((self.definitions)(number)?)
                }
            },
        };
        let count = self.count()?;
        let mut arguments = Arguments::new(count);
        for _ in 0..count {
            arguments.push(self.expression()?);
        }
        arguments.call(self.py, &function, names)
    }

    #[inline(never)]
    fn custom(&mut self) -> PyResult<Py<PyAny>> {
        let node = self.expression()?;
        let values = PyDict::new(self.py);
        for _ in 0..self.count()? {
            let key = key::read_key(self.py, &mut self.reader)?;
            values.set_item(key, self.expression()?)?;
        }
        node.call1(self.py, (values,))
    }
}

#[cold]
pub(crate) fn too_deep() -> PyErr {
    PyRecursionError::new_err(format!(
        "A task is nested more than {DEEPEST} levels deep: split it into several tasks."
    ))
}

/// The arguments of a call, which are let go after it.
struct Arguments {
    /// The first entry is scratch space for the callee (`PY_VECTORCALL_ARGUMENTS_OFFSET`); the
    /// others are owned references.
    pointers: SmallVec<[*mut ffi::PyObject; 9]>,
}

impl Arguments {
    #[inline]
    fn new(count: usize) -> Self {
        let mut pointers = SmallVec::with_capacity(count.min(1024) + 1);
        pointers.push(std::ptr::null_mut());
        Arguments { pointers }
    }

    #[inline]
    fn push(&mut self, argument: Py<PyAny>) {
        self.pointers.push(argument.into_ptr());
    }

    fn call(
        &mut self,
        py: Python<'_>,
        function: &Py<PyAny>,
        names: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let mut count = self.pointers.len() - 1;
        let names = names.map(|names| names.into_bound(py).cast_into::<PyTuple>());
        let names = names.transpose()?;
        if let Some(names) = &names {
            if !names
                .iter_borrowed()
                .all(|name| name.is_exact_instance_of::<PyString>())
            {
                return Err(malformed(DecodeError::Malformed(0)));
            }
            let named = names.len();
            count = count
                .checked_sub(named)
                .ok_or_else(|| malformed(DecodeError::Truncated))?;
        }
        // SAFETY: the pointers are live objects, as many as there are positional arguments and
        // names; there is a writable entry before the first.
        unsafe {
            let arguments = self.pointers.as_mut_ptr().add(1);
            let function = function.bind_borrowed(py);
            vectorcall(function, arguments, count, names.as_ref()).map(Bound::unbind)
        }
    }
}

impl Drop for Arguments {
    #[inline]
    fn drop(&mut self) {
        for &argument in &self.pointers[1..] {
            // SAFETY: owned, and the thread is attached: arguments live only inside `Run::call`.
            unsafe { ffi::Py_DECREF(argument) }
        }
    }
}
