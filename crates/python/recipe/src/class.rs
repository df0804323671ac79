//! How to treat objects of a class that is not built in.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};

/// What is known of a class.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Functions, classes, dtypes: nobody writes to them, and a program has only so many.
    Named,
    /// Other things that nobody writes to.
    Value,
    /// Numbers of NumPy.
    Number,
    /// Arrays of NumPy and subclasses: they say how large they are.
    Array,
    /// Tables of pandas: those without rows describe others, and nobody writes to them.
    Table,
    /// Anything else.
    Other,
}

impl Class {
    /// By the names of the classes that it is derived from, so that nothing has to be imported.
    ///
    /// # Errors
    /// What Python raises while they are read.
    pub(crate) fn of(class: &Bound<'_, PyType>) -> PyResult<Self> {
        let py = class.py();
        let mut is_numpy = None;
        for base in class.mro() {
            let module = base.getattr(intern!(py, "__module__"))?;
            let name = base.getattr(intern!(py, "__qualname__"))?;
            let (Ok(module), Ok(name)) = (module.cast::<PyString>(), name.cast::<PyString>())
            else {
                continue;
            };
            let (module, name) = (module.to_string_lossy(), name.to_string_lossy());
            let package = module.split('.').next().unwrap_or_default();
            // Of the class itself, which comes first.
            let is_numpy = *is_numpy.get_or_insert(package == "numpy");
            match (package, &*name) {
                ("numpy", "ndarray") => return Ok(Class::Array),
                ("pandas", "DataFrame" | "Series") => return Ok(Class::Table),
                // Its fields can be written to.
                ("numpy", "void") => return Ok(Class::Other),
                // Numbers, to NumPy; but a unit belongs to them.
                ("numpy", "timedelta64") => return Ok(Class::Value),
                ("numpy", "number" | "bool") if is_numpy => return Ok(Class::Number),
                ("numpy", "dtype" | "ufunc" | "_ArrayFunctionDispatcher")
                | ("pandas", "ExtensionDtype")
                | (
                    "builtins",
                    "type"
                    | "function"
                    | "builtin_function_or_method"
                    | "method_descriptor"
                    | "wrapper_descriptor"
                    | "module",
                )
                | ("operator", "itemgetter" | "attrgetter" | "methodcaller")
                | ("enum", "Enum") => return Ok(Class::Named),
                ("numpy", "generic")
                | ("pandas", "BaseOffset")
                | ("builtins", "int" | "str" | "complex" | "range")
                | ("datetime", "date" | "time" | "timedelta" | "tzinfo")
                | ("decimal", "Decimal")
                | ("fractions", "Fraction")
                | ("uuid", "UUID")
                | ("pathlib", "PurePath")
                | ("re", "Pattern") => {
                    return Ok(match is_writable(class)? {
                        true => Class::Other,
                        false => Class::Value,
                    });
                }
                _ => {}
            }
        }
        Ok(Class::Other)
    }
}

/// Packages whose subclasses of values have attributes, and no program writes to them.
const KEPT: [&str; 4] = ["pandas", "pathlib", "pytz", "dateutil"];

/// Whether somebody may give attributes to objects of a class that is derived from one of values.
fn is_writable(class: &Bound<'_, PyType>) -> PyResult<bool> {
    let py = class.py();
    let module = class.getattr(intern!(py, "__module__"))?;
    let module = module.extract::<String>().unwrap_or_default();
    if KEPT.contains(&module.split('.').next().unwrap_or_default()) {
        return Ok(false);
    }
    let has_dict = class
        .getattr(intern!(py, "__dictoffset__"))?
        .extract::<isize>()?
        != 0;
    let slots = class
        .getattr(intern!(py, "__dict__"))?
        .contains(intern!(py, "__slots__"))?;
    let is_known = matches!(&*module, "fractions" | "uuid" | "decimal" | "datetime");
    Ok(has_dict || slots && !is_known)
}
