//! NumPy's scalars: elements and sums of arrays.
//!
//! Pickling one takes Python tens of microseconds where its caches are cold, as they are in a worker
//! that has waited for a task. The pickles of a class of scalars differ in the bytes of the number
//! only, so they are written and read by templates, which are learnt from `pickle` itself.

use crate::pickle::plainly;
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;
use treadle_interpreter::loaded_module;

/// The classes, by the names of their types of data.
const NAMES: [&str; 13] = [
    "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16",
];

/// Of a class of scalars.
struct Template {
    class: Py<PyAny>,
    dtype: Py<PyAny>,
    /// What is before the number in a pickle.
    before: Vec<u8>,
    /// Bytes of the number.
    size: usize,
    after: Vec<u8>,
}

struct Templates {
    /// What a pickle calls with the type of data and the bytes.
    scalar: Py<PyAny>,
    all: Vec<Template>,
}

/// The templates, if NumPy is loaded.
fn templates(py: Python<'_>) -> Option<&'static Templates> {
    static TEMPLATES: PyOnceLock<Templates> = PyOnceLock::new();
    if let Some(templates) = TEMPLATES.get(py) {
        return Some(templates);
    }
    let numpy = loaded_module(py, intern!(py, "numpy")).ok()??;
    // Fails while another thread imports it; the next value tries again.
    TEMPLATES.get_or_try_init(py, || learn(&numpy)).ok()
}

fn learn(numpy: &Bound<'_, PyAny>) -> PyResult<Templates> {
    let zero = numpy.call_method1("float64", (0,))?;
    let scalar = zero.call_method0("__reduce__")?.get_item(0)?;
    let mut all = Vec::with_capacity(NAMES.len());
    for name in NAMES {
        let dtype = numpy.call_method1("dtype", (name,))?;
        let size: usize = dtype.getattr("itemsize")?.extract()?;
        let pickled = |byte: u8| -> PyResult<(Bound<'_, PyAny>, Vec<u8>)> {
            let number = PyBytes::new(numpy.py(), &vec![byte; size]);
            let value = scalar.call1((&dtype, number))?;
            let pickle = plainly(&value)?.as_bytes().to_vec();
            Ok((value, pickle))
        };
        let (value, one) = pickled(0x11)?;
        let (_, other) = pickled(0x22)?;
        let start = one.iter().zip(&other).position(|(one, other)| one != other);
        let template = start.and_then(|start| {
            let template = Template {
                class: value.get_type().into_any().unbind(),
                dtype: dtype.clone().unbind(),
                before: one[..start].to_vec(),
                size,
                after: one.get(start + size..)?.to_vec(),
            };
            (template.pickle(&vec![0x22; size]) == other).then_some(template)
        });
        all.push(template.ok_or_else(|| PyValueError::new_err(name))?);
    }
    Ok(Templates {
        scalar: scalar.unbind(),
        all,
    })
}

impl Template {
    fn pickle(&self, number: &[u8]) -> Vec<u8> {
        [&self.before, number, &self.after].concat()
    }

    /// The number in a pickle of this class.
    fn number<'a>(&self, pickle: &'a [u8]) -> Option<&'a [u8]> {
        let rest = pickle.strip_prefix(&*self.before)?;
        let number = rest.strip_suffix(&*self.after)?;
        (number.len() == self.size).then_some(number)
    }
}

/// What `pickle` makes of a scalar; `None`: it is none.
pub(crate) fn pickle(value: &Bound<'_, PyAny>) -> Option<Vec<u8>> {
    let py = value.py();
    let class = value.get_type_ptr();
    let templates = templates(py)?;
    let of_class = |template: &&Template| std::ptr::eq(template.class.as_ptr(), class.cast());
    let template = templates.all.iter().find(of_class)?;
    let mut view = ffi::Py_buffer::new();
    // SAFETY: attached, with a valid place for the answer; released below. The memory is that of a
    // contiguous buffer of this length.
    unsafe {
        if ffi::PyObject_GetBuffer(value.as_ptr(), &mut view, ffi::PyBUF_SIMPLE) != 0 {
            ffi::PyErr_Clear();
            return None;
        }
        let number = std::slice::from_raw_parts(view.buf.cast(), view.len as usize);
        let pickle = (number.len() == template.size).then(|| template.pickle(number));
        ffi::PyBuffer_Release(&mut view);
        pickle
    }
}

/// The scalar of such a pickle; `None`: it is of something else.
pub(crate) fn unpickle<'py>(py: Python<'py>, pickle: &[u8]) -> Option<PyResult<Bound<'py, PyAny>>> {
    /// Their pickles are shorter.
    const LONGEST: usize = 200;
    if pickle.len() > LONGEST {
        return None;
    }
    let templates = templates(py)?;
    let mut all = templates.all.iter();
    let (template, number) = all.find_map(|template| Some((template, template.number(pickle)?)))?;
    let arguments = (&template.dtype, PyBytes::new(py, number));
    Some(templates.scalar.bind(py).call1(arguments))
}
