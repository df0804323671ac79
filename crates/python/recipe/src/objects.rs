//! Writing the objects in recipes: values of the built-in types natively, others by their places.
//!
//! A task gets what unpickling its arguments together would give it: an object that occurs several
//! times is one object. That is noticed when it is met again, and the task is written anew.

use crate::class::Class;
use crate::definition::Kind;
use crate::encoder::{When, class_name};
use crate::plain::{put_atom, references};
use crate::submission::{LARGE, Place, Role, Submission};
use crate::tag;
use crate::value::is_longer;
use crate::write::{WriteError, WriteResult, dask, entries};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFrozenSet, PyList, PySet, PySlice, PyTuple, PyType};
use treadle_dask::Kind as NodeKind;
use treadle_types::value::{MAX_DEPTH, put_head, put_varint, tag as plain};

type Object<'a, 'py> = Borrowed<'a, 'py, PyAny>;

/// Natively written constants of more bytes than this are looked up, and defined if they recur.
const WORTH_SHARING: usize = 96;

/// An object that was met in the task.
pub(crate) enum Seen {
    /// It is being written.
    Inside,
    Done,
}

/// How to write an object that occurs several times.
pub(crate) enum Shared {
    /// Once; then by its local.
    Kept(Option<u32>),
    /// Likewise, but pickled as a whole: it contains itself.
    Pickled(Option<u32>),
}

/// How an object that could occur several times is written.
enum Entered {
    /// It was, by its local.
    Written,
    /// It has to be; whether its value is to be kept.
    ToWrite {
        keep: bool,
    },
    /// It cannot be met again.
    Once,
    Pickled,
}

impl<'py> Submission<'_, 'py> {
    /// Writes a value that is an argument as a whole.
    pub(crate) fn value(&mut self, value: Object<'_, 'py>, held: isize) -> WriteResult {
        if let Some(place) = self.large(value) {
            return self.put_large(value, held, &place);
        }
        let task = &mut self.task;
        let start = task.bytes.len();
        let (references, mutable) = (task.references, task.mutable);
        let (uses, definitions) = (task.uses, task.definitions.len());
        task.root = value.as_ptr() as usize;
        self.part(value, held, 0)?;
        let task = &mut self.task;
        let length = task.bytes.len() - start;
        // `place` has looked up what is pickled.
        if length <= WORTH_SHARING || task.bytes[start] == plain::PICKLE {
            return Ok(());
        }
        if length > LARGE && !task.splits {
            if task.references > references {
                task.splits = true;
                return Err(WriteError::Restart);
            }
            task.definitions.truncate(definitions);
            return self.replace_by_constant(value, start);
        }
        if task.references == references && task.uses == uses {
            let kind = match task.mutable == mutable {
                true => Kind::SharedValue,
                false => Kind::FreshValue,
            };
            let name = || class_name(&value);
            let content = &task.bytes[start..];
            if let Some(number) = self.encoder.define(kind, content, When::Again, name) {
                task.bytes.truncate(start);
                task.put_definition(number);
            }
        }
        Ok(())
    }

    /// Writes a value, or a part of one.
    fn part(&mut self, value: Object<'_, 'py>, held: isize, depth: usize) -> WriteResult {
        let start = self.task.bytes.len();
        if is_longer(value, LARGE) && (depth == 0 || self.task.splits) {
            return self.replace_by_constant(value, start);
        }
        if put_atom(value, &mut self.task.bytes) {
            return Ok(());
        }
        let class = value.get_type_ptr();
        let is = |of: *mut ffi::PyTypeObject| class == of;
        let is_hashable = is(&raw mut ffi::PyTuple_Type)
            || is(&raw mut ffi::PySlice_Type)
            || is(&raw mut ffi::PyFrozenSet_Type);
        let is_container = is_hashable
            || is(&raw mut ffi::PyList_Type)
            || is(&raw mut ffi::PyDict_Type)
            || is(&raw mut ffi::PySet_Type);
        if !is_container {
            if value.is(value.py().Ellipsis()) {
                self.task.bytes.push(tag::ELLIPSIS);
                return Ok(());
            }
            return self.leaf(value, held);
        }
        if depth == MAX_DEPTH {
            // Perhaps it contains itself.
            self.task
                .shared
                .insert(self.task.root, Shared::Pickled(None));
            return Err(WriteError::Restart);
        }
        let entered = match is_hashable {
            true if self.task.shared.is_empty() => Entered::Once,
            true => self.look_up(value),
            false => self.enter(value, held)?,
        };
        let keep = match entered {
            Entered::Written => return Ok(()),
            Entered::Pickled => return self.pickled(value),
            Entered::ToWrite { keep } => keep,
            Entered::Once => false,
        };
        self.task.put_keep(keep);
        let references = self.task.references;
        let mutable = self.task.mutable;
        self.nested(|this| this.parts(value, depth))?;
        let is_once = matches!(entered, Entered::Once);
        if is_once && is_hashable && self.task.mutable > mutable {
            self.meet(value, held);
        }
        let is_large = self.task.splits && self.task.bytes.len() - start > LARGE;
        if is_large && self.task.references == references {
            self.replace_by_constant(value, start + usize::from(keep))?;
        }
        if !is_once {
            self.leave(value, keep);
        }
        Ok(())
    }

    fn parts(&mut self, value: Object<'_, 'py>, depth: usize) -> WriteResult {
        if let Ok(items) = value.cast_exact::<PyTuple>() {
            put_head(plain::TUPLE, items.len(), &mut self.task.bytes);
            for item in items.as_slice() {
                self.part(item.as_borrowed(), 0, depth + 1)?;
            }
        } else if let Ok(slice) = value.cast_exact::<PySlice>() {
            self.task.bytes.push(tag::SLICE);
            for name in [
                intern!(value.py(), "start"),
                intern!(value.py(), "stop"),
                intern!(value.py(), "step"),
            ] {
                self.part(slice.getattr(name)?.as_borrowed(), 1, depth + 1)?;
            }
        } else if let Ok(entries_of) = value.cast_exact::<PyDict>() {
            self.task.mutable += 1;
            let entries = entries(&entries_of);
            put_head(plain::DICT, entries.len(), &mut self.task.bytes);
            let parses = self.task.parses;
            for (key, item) in entries {
                self.task.parses = false;
                self.part(key.as_borrowed(), 1, depth + 1)?;
                self.task.parses = parses;
                self.part(item.as_borrowed(), 1, depth + 1)?;
            }
        } else {
            // Code of Python's may run meanwhile, and change the container.
            let (tag, items): (u8, Vec<Bound<'py, PyAny>>) =
                if let Ok(items) = value.cast_exact::<PyList>() {
                    (plain::LIST, items.iter().collect())
                } else if let Ok(items) = value.cast_exact::<PySet>() {
                    (tag::SET, items.iter().collect())
                } else {
                    let items = value.cast_exact::<PyFrozenSet>().map_err(PyErr::from)?;
                    (tag::FROZENSET, items.iter().collect())
                };
            self.task.mutable += usize::from(tag != tag::FROZENSET);
            put_head(tag, items.len(), &mut self.task.bytes);
            for item in items {
                self.part(item.as_borrowed(), 1, depth + 1)?;
            }
        }
        Ok(())
    }

    fn replace_by_constant(&mut self, value: Object<'_, 'py>, start: usize) -> WriteResult {
        let number = self.large_constant(&value)?;
        self.task.bytes.truncate(start);
        self.put_place(&Place::Constant(number))
    }

    /// Writes an object of the built-in types that is a constant: once, if it occurs several times.
    fn put_large(&mut self, value: Object<'_, 'py>, held: isize, place: &Place) -> WriteResult {
        let keep = match self.enter(value, held)? {
            Entered::Written => return Ok(()),
            Entered::ToWrite { keep } => keep,
            Entered::Once | Entered::Pickled => return self.put_place(place),
        };
        self.task.put_keep(keep);
        self.put_place(place)?;
        self.leave(value, keep);
        Ok(())
    }

    /// Writes an object that has no native form.
    fn leaf(&mut self, object: Object<'_, 'py>, held: isize) -> WriteResult {
        if self.task.parses {
            let kind = self.spec.kind(object);
            let parsed = match kind {
                NodeKind::Value => self.parse(object)?,
                _ => Some(object.to_owned()),
            };
            if let Some(node) = parsed {
                // Alive until the task is written: what was met is known by its address.
                self.task.held.push(node.clone());
                // What is inside a node is what it seems.
                self.task.parses = false;
                self.node(node.as_borrowed(), held + 1)?;
                self.task.parses = true;
                return Ok(());
            }
        }
        self.object(object, held)
    }

    /// What Dask makes of an argument: a subclass of a container with futures inside, or a future
    /// of somebody else's.
    fn parse(&self, object: Object<'_, 'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = object.py();
        let is_container = object.is_instance_of::<PyTuple>()
            || object.is_instance_of::<PyList>()
            || object.is_instance_of::<PySet>()
            || object.is_instance_of::<PyDict>();
        let is_future = || -> PyResult<bool> {
            match object.getattr_opt(intern!(py, "__dask_future__"))? {
                Some(mark) => mark.is_truthy(),
                None => Ok(false),
            }
        };
        if object.is_instance_of::<PyType>() || !(is_container || is_future()?) {
            return Ok(None);
        }
        let parsed = dask(py)?.parse_input.bind(py).call1((object,))?;
        let is_node = self.spec.kind(parsed.as_borrowed()) != NodeKind::Value;
        Ok(is_node.then_some(parsed))
    }

    /// Writes an object by its pickle.
    pub(crate) fn object(&mut self, object: Object<'_, 'py>, held: isize) -> WriteResult {
        let class = self.encoder.class_of(&object)?;
        let can_recur = references(object) - held > 1;
        if class == Class::Number && self.number(&object)? {
            return Ok(());
        }
        if matches!(class, Class::Named | Class::Value | Class::Number) {
            let place = self.place(&object, Role::Argument, class, can_recur)?;
            return self.put_place(&place);
        }
        let entered = self.enter(object, held)?;
        let keep = match entered {
            Entered::Written => return Ok(()),
            Entered::ToWrite { keep } => keep,
            Entered::Once | Entered::Pickled => false,
        };
        self.task.put_keep(keep);
        let place = self.place(&object, Role::Argument, class, can_recur)?;
        self.put_place(&place)?;
        self.task.mutable += 1;
        if !matches!(entered, Entered::Once) {
            self.leave(object, keep);
        }
        Ok(())
    }

    /// Writes a number of NumPy as a call of its type, which is shorter and faster than its pickle;
    /// whether it is one of the usual types.
    fn number(&mut self, number: &Bound<'py, PyAny>) -> Result<bool, WriteError> {
        let mut bytes = Vec::with_capacity(10);
        let item = number.call_method0(intern!(number.py(), "item"))?;
        if !put_atom(item.as_borrowed(), &mut bytes) {
            return Ok(false);
        }
        let class = number.get_type().into_any();
        let place = self.place(&class, Role::Argument, Class::Named, true)?;
        let Place::Definition(class) = place else {
            return Ok(false);
        };
        self.task.bytes.push(tag::CALL);
        put_varint(class.into(), &mut self.task.bytes);
        self.task.use_definition(class);
        put_varint(1, &mut self.task.bytes);
        self.task.bytes.extend_from_slice(&bytes);
        Ok(true)
    }

    /// Writes a container as a whole by its pickle.
    fn pickled(&mut self, value: Object<'_, 'py>) -> WriteResult {
        self.task.put_keep(true);
        self.nested(|this| {
            let place = this.place(&value, Role::Argument, Class::Other, true)?;
            this.put_place(&place)
        })?;
        let local = self.task.new_local();
        let address = value.as_ptr() as usize;
        self.task
            .shared
            .insert(address, Shared::Pickled(Some(local)));
        Ok(())
    }

    /// How to write an object that an earlier attempt may have found to be shared.
    fn look_up(&mut self, object: Object<'_, 'py>) -> Entered {
        match self.task.shared.get(&(object.as_ptr() as usize)) {
            None => Entered::Once,
            Some(Shared::Pickled(None)) => Entered::Pickled,
            Some(Shared::Kept(Some(local)) | Shared::Pickled(Some(local))) => {
                let local = *local;
                self.task.put_local(local);
                Entered::Written
            }
            Some(Shared::Kept(None)) => Entered::ToWrite { keep: true },
        }
    }

    /// Looks whether an object that tasks may write to was met before, and remembers it.
    fn enter(&mut self, object: Object<'_, 'py>, held: isize) -> Result<Entered, WriteError> {
        if !self.task.shared.is_empty() {
            match self.look_up(object) {
                Entered::Once => {}
                entered => return Ok(entered),
            }
        }
        if references(object) - held <= 1 {
            return Ok(Entered::Once);
        }
        let address = object.as_ptr() as usize;
        match self.task.seen.insert(address, Seen::Inside) {
            None => Ok(Entered::ToWrite { keep: false }),
            Some(Seen::Inside) => {
                self.task.shared.insert(address, Shared::Pickled(None));
                Err(WriteError::Restart)
            }
            Some(Seen::Done) => {
                // Others may be found in the rest of the task.
                self.task.shared.insert(address, Shared::Kept(None));
                self.task.again = true;
                Ok(Entered::ToWrite { keep: true })
            }
        }
    }

    /// Remembers a container that cannot be written to, with parts that can: they are the same ones
    /// where it occurs again.
    fn meet(&mut self, object: Object<'_, 'py>, held: isize) {
        if references(object) - held <= 1 {
            return;
        }
        let address = object.as_ptr() as usize;
        if self.task.seen.insert(address, Seen::Done).is_some() {
            self.task.shared.insert(address, Shared::Kept(None));
            self.task.again = true;
        }
    }

    fn leave(&mut self, object: Object<'_, 'py>, keep: bool) {
        let address = object.as_ptr() as usize;
        if keep {
            let local = self.task.new_local();
            self.task.shared.insert(address, Shared::Kept(Some(local)));
        } else if let Some(seen) = self.task.seen.get_mut(&address) {
            *seen = Seen::Done;
        }
    }
}
