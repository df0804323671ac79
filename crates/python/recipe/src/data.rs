//! Which objects are nothing but data: an equal object is as good as they are.

use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyByteArray, PyComplex, PyDict, PyFrozenSet, PyInt, PyList, PySet, PyTuple};
use treadle_interpreter::loaded_module;

/// Objects of more parts are not small.
const MOST: usize = 256;

/// Whether an object is nothing but data, and may take no more than `limit` bytes as a pickle: of
/// exactly a built-in type of numbers, text, bytes or containers, or a scalar or an array of NumPy
/// without objects, and its parts, too. No code of the object's own runs.
///
/// # Errors
/// What NumPy raises.
pub(crate) fn is_small_data(object: &Bound<'_, PyAny>, limit: usize) -> PyResult<bool> {
    let mut look = Look {
        // A pickle may be shorter than the object, but seldom by that much.
        bytes: limit.saturating_mul(4),
        seen: Vec::new(),
    };
    look.at(object)
}

/// A look at an object that ends as soon as that is more than data, or large.
struct Look {
    /// How many more may be met.
    bytes: usize,
    /// Objects that were looked at, by address.
    seen: Vec<usize>,
}

impl Look {
    fn at(&mut self, object: &Bound<'_, PyAny>) -> PyResult<bool> {
        let address = object.as_ptr() as usize;
        if self.seen.contains(&address) {
            return Ok(true);
        }
        if self.seen.len() == MOST {
            return Ok(false);
        }
        self.seen.push(address);
        if let Ok(items) = object.cast_exact::<PyTuple>() {
            return self.at_all(items.iter());
        }
        if let Ok(items) = object.cast_exact::<PyList>() {
            return self.at_all(items.iter());
        }
        if let Ok(entries) = object.cast_exact::<PyDict>() {
            return self.at_all(entries.iter().flat_map(|(key, value)| [key, value]));
        }
        if let Ok(items) = object.cast_exact::<PySet>() {
            return self.at_all(items.iter());
        }
        if let Ok(items) = object.cast_exact::<PyFrozenSet>() {
            return self.at_all(items.iter());
        }
        let Some(bytes) = self.size_of(object)? else {
            return Ok(false);
        };
        Ok(match self.bytes.checked_sub(bytes) {
            Some(left) => {
                self.bytes = left;
                true
            }
            None => false,
        })
    }

    fn at_all<'py>(&mut self, parts: impl Iterator<Item = Bound<'py, PyAny>>) -> PyResult<bool> {
        for part in parts {
            if !self.at(&part)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The bytes of an object without parts; `None`: it is more than data.
    fn size_of(&self, object: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        let (py, pointer, class) = (object.py(), object.as_ptr(), object.get_type_ptr());
        // SAFETY: the class is compared before an object is read as one of it.
        let length = unsafe {
            if class == &raw mut ffi::PyUnicode_Type {
                Some(ffi::PyUnicode_GET_LENGTH(pointer))
            } else if class == &raw mut ffi::PyBytes_Type {
                Some(ffi::Py_SIZE(pointer))
            } else if class == &raw mut ffi::PyFloat_Type
                || class == &raw mut ffi::PyBool_Type
                || pointer == ffi::Py_None()
                || pointer == ffi::Py_Ellipsis()
            {
                Some(1)
            } else {
                None
            }
        };
        if let Some(length) = length {
            return Ok(Some(length as usize));
        }
        if object.is_exact_instance_of::<PyInt>() {
            let bits = object.call_method0(intern!(py, "bit_length"))?;
            return Ok(Some(1 + bits.extract::<usize>()? / 8));
        }
        if object.is_exact_instance_of::<PyComplex>() {
            return Ok(Some(16));
        }
        if let Ok(bytes) = object.cast_exact::<PyByteArray>() {
            return Ok(Some(bytes.len()));
        }
        let Some(numpy) = numpy(py)? else {
            return Ok(None);
        };
        let is_class = |known: &Py<PyAny>| std::ptr::eq(known.as_ptr(), class.cast());
        let is_data = match is_class(&numpy.array) {
            true => {
                let dtype = object.getattr(intern!(py, "dtype"))?;
                !dtype.getattr(intern!(py, "hasobject"))?.is_truthy()?
            }
            false => numpy.scalars.iter().any(is_class),
        };
        match is_data {
            true => object.getattr(intern!(py, "nbytes"))?.extract().map(Some),
            false => Ok(None),
        }
    }
}

/// Classes of NumPy.
struct Numpy {
    array: Py<PyAny>,
    /// Of scalars that have no parts.
    scalars: Vec<Py<PyAny>>,
}

/// The classes, if NumPy is loaded.
fn numpy(py: Python<'_>) -> PyResult<Option<&'static Numpy>> {
    static CLASSES: PyOnceLock<Numpy> = PyOnceLock::new();
    if let Some(classes) = CLASSES.get(py) {
        return Ok(Some(classes));
    }
    let Some(numpy) = loaded_module(py, intern!(py, "numpy"))? else {
        return Ok(None);
    };
    // Fails while another thread imports it; the next value tries again.
    Ok(CLASSES.get_or_try_init(py, || learn(&numpy)).ok())
}

fn learn(numpy: &Bound<'_, PyAny>) -> PyResult<Numpy> {
    let codes: String = numpy.getattr("typecodes")?.get_item("All")?.extract()?;
    let plain = codes.chars().filter(|code| !matches!(code, 'O' | 'V'));
    let class = |code: char| -> PyResult<Py<PyAny>> {
        let dtype = numpy.call_method1("dtype", (code,))?;
        Ok(dtype.getattr("type")?.unbind())
    };
    Ok(Numpy {
        array: numpy.getattr("ndarray")?.unbind(),
        scalars: plain.map(class).collect::<PyResult<_>>()?,
    })
}
