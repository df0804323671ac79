//! Recipes of tasks that are submitted together.

use crate::class::Class;
use crate::constant::{self, Constant};
use crate::definition::Kind;
use crate::encoder::{Encoder, When, class_name, function_name};
use crate::fused::Scope;
use crate::guard::Guard;
use crate::inputs::{Input, Inputs};
use crate::key::encode_key;
use crate::objects::{Seen, Shared};
use crate::run::too_deep;
use crate::stateless;
use crate::write::{WriteError, WriteResult};
use crate::{pickle, tag};
use bytes::Bytes;
use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};
use std::collections::HashMap;
use treadle_dask::subgraph::Shapes;
use treadle_dask::{Spec, size_of};
use treadle_interpreter::repr;
use treadle_types::value::{put_head, put_varint, tag as plain};

/// Constants of more bytes than this are not put into recipes.
pub(crate) const LARGE: usize = 64 << 10;
/// Keyword arguments of `map` of more bytes than this, as Dask estimates them, are one object for all
/// calls on a worker. So they are in distributed.
const SHARED_ABOVE: u64 = 100_000;
/// Pickles of at most so many bytes may well be in every recipe, and are not looked up.
const SMALL: usize = 128;

/// Each attempt finds at least one more object that contains itself; nobody has so many.
const ATTEMPTS: usize = 1000;

/// Encodes tasks that are submitted together. What they share is looked at once; so objects must
/// not be changed before the submission is over.
///
/// For the use of one thread; several may share an [`Encoder`].
pub struct Submission<'e, 'py> {
    pub(crate) encoder: &'e Encoder,
    pub(crate) spec: &'static Spec,
    pub(crate) shapes: Shapes,
    py: Python<'py>,
    /// What became of objects that may be met again, by address.
    places: HashMap<usize, (Place, Py<PyAny>)>,
    /// Definitions of tuples of names.
    pub(crate) names: HashMap<Vec<u8>, u32>,
    constants: Vec<Constant>,
    /// Whether some were text, bytes or plain containers.
    has_large_plain: bool,
    /// By content, and by owner where there is one.
    by_hash: HashMap<(u128, Option<u128>), u32>,
    pub(crate) task: Task<'py>,
}

/// The task that is being encoded.
#[derive(Default)]
pub(crate) struct Task<'py> {
    pub(crate) bytes: Vec<u8>,
    pub(crate) inputs: Inputs<'py>,
    pub(crate) definitions: Vec<u32>,
    /// For each local, where it was read last.
    pub(crate) locals: Vec<Option<usize>>,
    pub(crate) depth: u32,
    /// Inside a fused task, what its keys stand for.
    pub(crate) scope: Option<Scope<'py>>,
    /// Whether plain containers are searched for futures.
    pub(crate) parses: bool,
    /// How many inputs and locals were referred to.
    pub(crate) references: usize,
    /// How many definitions were.
    pub(crate) uses: usize,
    /// Whether large parts of large arguments become constants: an earlier attempt found one that
    /// could not as a whole.
    pub(crate) splits: bool,
    /// How many objects were written that tasks could write to.
    pub(crate) mutable: usize,
    pub(crate) seen: HashMap<usize, Seen>,
    /// Objects that an earlier attempt found to occur several times.
    pub(crate) shared: HashMap<usize, Shared>,
    /// Whether a function was called.
    pub(crate) calls: bool,
    /// Whether this attempt found such an object too late.
    pub(crate) again: bool,
    /// Nodes that were made for it.
    pub(crate) held: Vec<Bound<'py, PyAny>>,
    /// The outermost container that is being written.
    pub(crate) root: usize,
    key: Option<Bound<'py, PyAny>>,
    pub(crate) argument: Argument<'py>,
    /// The inputs that are made anew for the task.
    owned: Vec<u32>,
    /// Where a keyword argument begins that tasks share if it is a large constant.
    pub(crate) shared_named: Option<usize>,
    /// Whether large keyword arguments are such values.
    pub(crate) shares_named: bool,
}

/// What a task's error is about.
#[derive(Default)]
pub(crate) enum Argument<'py> {
    #[default]
    Value,
    Function,
    Positional(usize),
    Named(Bound<'py, PyAny>),
}

/// A task as it is sent.
pub struct Recipe<'s, 'py> {
    /// What to run.
    pub bytes: &'s [u8],
    /// What it reads, each once, in the order in which the recipe numbers them.
    pub inputs: &'s [Input<'py>],
    /// The numbers of the definitions that it refers to, each once; that of its function first.
    pub definitions: &'s [u32],
}

/// What an object becomes in a recipe.
#[derive(Clone)]
pub(crate) enum Place {
    Definition(u32),
    Constant(u32),
    /// A pickle that has occurred once.
    Inline(Kind, Bytes),
}

/// Where an object stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Function,
    Argument,
}

impl<'e, 'py> Submission<'e, 'py> {
    /// Without tasks yet.
    ///
    /// # Errors
    /// When Dask cannot be imported.
    pub fn new(py: Python<'py>, encoder: &'e Encoder) -> PyResult<Self> {
        Ok(Submission {
            encoder,
            spec: Spec::get(py)?,
            shapes: Shapes::default(),
            py,
            places: HashMap::new(),
            names: HashMap::new(),
            constants: Vec::new(),
            has_large_plain: false,
            by_hash: HashMap::new(),
            task: Task::default(),
        })
    }

    /// The recipe of a node of a graph. Tasks of the old form are converted before.
    ///
    /// # Errors
    /// A `TypeError` for what cannot be pickled; what Python raises while keys are compared.
    pub fn encode_task(
        &mut self,
        key: &Bound<'py, PyAny>,
        node: &Bound<'py, PyAny>,
    ) -> PyResult<Recipe<'_, 'py>> {
        self.encode(key, false, |submission| {
            submission.node(node.as_borrowed(), 0)
        })
    }

    /// The recipe of a call, without a node for it. Futures are found in the arguments, and in
    /// lists, tuples, sets and the values of dictionaries among them. The calls of a `map` share
    /// large keyword arguments (`shares_named`).
    ///
    /// # Errors
    /// As for [`Submission::encode_task`].
    pub fn encode_call(
        &mut self,
        key: &Bound<'py, PyAny>,
        function: &Bound<'py, PyAny>,
        arguments: &[Bound<'py, PyAny>],
        named: Option<&Bound<'py, PyDict>>,
        shares_named: bool,
    ) -> PyResult<Recipe<'_, 'py>> {
        self.encode(key, true, |submission| {
            submission.task.shares_named = shares_named;
            submission.call(function.as_borrowed(), arguments, named)
        })
    }

    /// The large constants so far. Each content is there once.
    pub fn constants(&self) -> &[Constant] {
        &self.constants
    }

    fn encode(
        &mut self,
        key: &Bound<'py, PyAny>,
        parses: bool,
        write: impl Fn(&mut Self) -> WriteResult,
    ) -> PyResult<Recipe<'_, 'py>> {
        if !self.task.shared.is_empty() {
            self.task.shared.clear();
        }
        self.task.splits = false;
        self.task.key = Some(key.clone());
        let mut attempts = 0;
        loop {
            self.task.start(parses);
            match write(self) {
                Ok(()) if !self.task.again => break,
                Ok(()) | Err(WriteError::Restart) if attempts < ATTEMPTS => {
                    self.task.forget_locals()
                }
                Ok(()) | Err(WriteError::Restart) => return Err(too_deep()),
                Err(WriteError::Python(error)) => return Err(error),
            }
            attempts += 1;
        }
        self.task.finish();
        self.task.held.clear();
        Ok(Recipe {
            bytes: &self.task.bytes,
            inputs: self.task.inputs.as_slice(),
            definitions: &self.task.definitions,
        })
    }

    /// What an object that is not written natively becomes.
    pub(crate) fn place(
        &mut self,
        object: &Bound<'py, PyAny>,
        role: Role,
        class: Class,
        can_recur: bool,
    ) -> Result<Place, WriteError> {
        let address = object.as_ptr() as usize;
        if let Some((place, _)) = self.places.get(&address) {
            let Place::Inline(kind, bytes) = place else {
                return Ok(place.clone());
            };
            // Met again: worth a definition.
            let defined = self
                .encoder
                .define(*kind, bytes, When::Now, || class_name(object));
            let place = Place::Definition(defined.expect("defined now"));
            self.remember(object, place.clone());
            return Ok(place);
        }
        let place = self.new_place(object, role, class)?;
        if can_recur {
            self.remember(object, place.clone());
        }
        Ok(place)
    }

    fn remember(&mut self, object: &Bound<'py, PyAny>, place: Place) {
        let address = object.as_ptr() as usize;
        self.places
            .insert(address, (place, object.clone().unbind()));
    }

    fn new_place(
        &mut self,
        object: &Bound<'py, PyAny>,
        role: Role,
        class: Class,
    ) -> Result<Place, WriteError> {
        let is_named = role == Role::Function || class == Class::Named;
        if is_named && let Some(number) = self.encoder.known(object)? {
            return Ok(Place::Definition(number));
        }
        if self.is_large(object, class)? {
            return self.constant(object, role, class).map(Place::Constant);
        }
        let pickled = match pickle::dumps(object, LARGE) {
            Ok(Some(pickled)) => pickled,
            Ok(None) => return self.constant(object, role, class).map(Place::Constant),
            Err(error) => return Err(self.unpicklable(object, error)),
        };
        let bytes = pickled.as_bytes();
        let is_shared = match class {
            Class::Table => object.len()? == 0,
            Class::Value | Class::Number => true,
            Class::Named => stateless::is_stateless(object, bytes)?,
            Class::Array | Class::Other => {
                role == Role::Function && stateless::is_stateless(object, bytes)?
            }
        };
        let kind = if is_shared { Kind::Shared } else { Kind::Fresh };
        let inline = || Ok(Place::Inline(kind, Bytes::copy_from_slice(bytes)));
        let when = if is_named && (role == Role::Function || bytes.len() <= SMALL) {
            When::Now
        } else if bytes.len() <= SMALL {
            // Not worth remembering, unless the same object is met again.
            return inline();
        } else {
            When::Again
        };
        let name = || match role {
            Role::Function => function_name(object),
            Role::Argument => class_name(object),
        };
        let Some(number) = self.encoder.define(kind, bytes, when, name) else {
            return inline();
        };
        if is_named && let Some(guard) = Guard::of(object)? {
            self.encoder.remember(object, guard, number);
        }
        Ok(Place::Definition(number))
    }

    /// Whether an object is known to be too large without pickling it.
    fn is_large(&self, object: &Bound<'py, PyAny>, class: Class) -> PyResult<bool> {
        let py = object.py();
        Ok(match class {
            Class::Array => {
                let bytes: usize = object.getattr(intern!(py, "nbytes"))?.extract()?;
                bytes > LARGE
            }
            Class::Table if object.len()? > 0 => size_of(object)? > 2 * LARGE as u64,
            _ => false,
        })
    }

    /// The number of a large constant.
    pub(crate) fn constant(
        &mut self,
        object: &Bound<'py, PyAny>,
        role: Role,
        class: Class,
    ) -> Result<u32, WriteError> {
        let (encoded, hash) = match constant::encode(object) {
            Ok(encoded) => encoded,
            Err(error) => return Err(self.unpicklable(object, error)),
        };
        if let Some(&number) = self.by_hash.get(&(hash, None)) {
            return Ok(number);
        }
        let is_frozen = match class {
            Class::Value | Class::Number => true,
            Class::Named => stateless::is_stateless(object, &[])?,
            Class::Array => is_read_only(object)?,
            Class::Other if role == Role::Function => stateless::is_stateless(object, &[])?,
            Class::Table | Class::Other => {
                object.is_exact_instance_of::<PyString>()
                    || object.is_exact_instance_of::<PyBytes>()
            }
        };
        let number = self.constants.len() as u32;
        self.by_hash.insert((hash, None), number);
        self.constants.push(Constant {
            key: constant::key(hash),
            object: object.clone().unbind(),
            encoded,
            hash,
            is_frozen,
        });
        Ok(number)
    }

    /// The number of a large constant of the built-in types.
    pub(crate) fn large_constant(&mut self, object: &Bound<'py, PyAny>) -> Result<u32, WriteError> {
        let number = self.constant(object, Role::Argument, Class::Other)?;
        self.remember(object, Place::Constant(number));
        self.has_large_plain = true;
        Ok(number)
    }

    /// What an object of the built-in types became that was found to be large before.
    #[inline]
    pub(crate) fn large(&self, object: Borrowed<'_, 'py, PyAny>) -> Option<Place> {
        if !self.has_large_plain {
            return None;
        }
        let place = self.places.get(&(object.as_ptr() as usize));
        place
            .filter(|(place, _)| matches!(place, Place::Constant(_)))
            .map(|(place, _)| place.clone())
    }

    /// Writes what an object became.
    ///
    /// # Errors
    /// When Dask cannot say how large a constant is.
    pub(crate) fn put_place(&mut self, place: &Place) -> WriteResult {
        match place {
            Place::Definition(number) => self.task.put_definition(*number),
            Place::Constant(number) => self.put_constant(*number)?,
            Place::Inline(kind, bytes) => {
                self.task.mutable += usize::from(*kind == Kind::Fresh);
                put_head(plain::PICKLE, bytes.len(), &mut self.task.bytes);
                self.task.bytes.extend_from_slice(bytes);
            }
        }
        Ok(())
    }

    /// Writes a constant. Each task has an object of its own, as one that comes with the task would
    /// be, unless nobody can write to it or tasks share the value.
    fn put_constant(&mut self, number: u32) -> PyResult<()> {
        if self.constants[number as usize].is_frozen {
            self.task.put_constant(number);
            return Ok(());
        }
        match self.owner_here(number)? {
            Some(owner) => {
                let number = self.shared_constant(number, owner);
                self.task.put_constant(number);
            }
            None => self.task.put_own(number),
        }
        Ok(())
    }

    /// The owner of a constant that is written next, if tasks share it. Data of a graph has the owner
    /// that its key names: it is all that there is of its task.
    fn owner_here(&self, number: u32) -> PyResult<Option<u128>> {
        let task = &self.task;
        let here = task.bytes.len();
        if here == 0 {
            let mut name = Vec::with_capacity(64);
            if let Some(key) = &task.key {
                encode_key(key.as_borrowed(), &mut name)?;
            }
            return Ok(Some(constant::owner(&name)));
        }
        let Argument::Named(name) = &task.argument else {
            return Ok(None);
        };
        if task.shared_named != Some(here) {
            return Ok(None);
        }
        let owner = constant::owner(name.extract::<&str>()?.as_bytes());
        let constant = &self.constants[number as usize];
        let is_shared = self.by_hash.contains_key(&(constant.hash, Some(owner)))
            || size_of(constant.object.bind(self.py))? > SHARED_ABOVE;
        Ok(is_shared.then_some(owner))
    }

    /// The number of a constant whose readers share one object.
    fn shared_constant(&mut self, number: u32, owner: u128) -> u32 {
        let constant = &self.constants[number as usize];
        let next = self.constants.len() as u32;
        let known = self.by_hash.entry((constant.hash, Some(owner)));
        let shared = *known.or_insert(next);
        if shared == next {
            self.constants.push(constant.shared_by(self.py, owner));
        }
        shared
    }

    /// The error for something that cannot be pickled; the message begins as distributed's does.
    #[cold]
    fn unpicklable(&self, object: &Bound<'py, PyAny>, error: PyErr) -> WriteError {
        let py = self.py;
        if !error.is_instance_of::<PyException>(py) {
            return WriteError::Python(error);
        }
        let what = match &self.task.argument {
            Argument::Value => "the value".to_owned(),
            Argument::Function => "the function".to_owned(),
            Argument::Positional(number) => format!("argument {number}"),
            Argument::Named(name) => format!("argument {}", repr(name.as_borrowed())),
        };
        let key = self.task.key.as_ref();
        let key = key.map_or_else(String::new, |key| repr(key.as_borrowed()));
        let failure = PyTypeError::new_err(format!(
            "Could not serialize object of type {}: {what} of task {key}: {}",
            class_name(object),
            error.value(py),
        ));
        failure.set_cause(py, Some(error));
        WriteError::Python(failure)
    }
}

impl<'py> Task<'py> {
    fn start(&mut self, parses: bool) {
        self.bytes.clear();
        self.inputs.clear();
        self.definitions.clear();
        self.locals.clear();
        self.depth = 0;
        self.scope = None;
        self.parses = parses;
        self.references = 0;
        self.uses = 0;
        self.mutable = 0;
        if !self.seen.is_empty() {
            self.seen.clear();
        }
        self.calls = false;
        self.again = false;
        self.argument = Argument::Value;
        self.owned.clear();
        self.shared_named = None;
        self.shares_named = false;
    }

    /// Objects that are shared have no locals yet.
    fn forget_locals(&mut self) {
        for shared in self.shared.values_mut() {
            let (Shared::Kept(local) | Shared::Pickled(local)) = shared;
            *local = None;
        }
    }

    /// Lets locals go where they are read last.
    fn finish(&mut self) {
        // Before the head below, which moves what is behind it.
        for at in self.locals.iter().flatten() {
            self.bytes[*at] = tag::LAST;
        }
        if !self.owned.is_empty() {
            let mut head = vec![tag::OWNED];
            put_varint(self.owned.len() as u64, &mut head);
            for input in &self.owned {
                put_varint((*input).into(), &mut head);
            }
            self.bytes.splice(..0, head);
        }
    }

    pub(crate) fn put_definition(&mut self, number: u32) {
        self.bytes.push(tag::DEFINITION);
        put_varint(number.into(), &mut self.bytes);
        self.use_definition(number);
    }

    pub(crate) fn use_definition(&mut self, number: u32) {
        self.uses += 1;
        if !self.definitions.contains(&number) {
            self.definitions.push(number);
        }
    }

    fn put_own(&mut self, number: u32) {
        let input = self.inputs.constant(number);
        if !self.owned.contains(&input) {
            self.owned.push(input);
        }
        self.references += 1;
        self.bytes.push(tag::OWN);
        put_varint(input.into(), &mut self.bytes);
    }

    fn put_constant(&mut self, number: u32) {
        let input = self.inputs.constant(number);
        self.put_input(input);
    }

    pub(crate) fn put_input(&mut self, number: u32) {
        self.references += 1;
        self.bytes.push(tag::INPUT);
        put_varint(number.into(), &mut self.bytes);
    }

    pub(crate) fn put_local(&mut self, number: u32) {
        self.references += 1;
        self.locals[number as usize] = Some(self.bytes.len());
        self.bytes.push(tag::LOCAL);
        put_varint(number.into(), &mut self.bytes);
    }

    /// Whether the value of the next expression becomes a local.
    pub(crate) fn put_keep(&mut self, keep: bool) {
        // The number of a local depends on the rest of the task: such bytes are no constant.
        if keep {
            self.bytes.push(tag::KEEP);
            self.references += 1;
        }
    }

    pub(crate) fn new_local(&mut self) -> u32 {
        self.locals.push(None);
        self.locals.len() as u32 - 1
    }
}

/// Whether an array of NumPy cannot be written to. It arrives as such an array.
fn is_read_only(array: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = array.py();
    let flags = array.getattr(intern!(py, "flags"))?;
    let is_writable: bool = flags.getattr(intern!(py, "writeable"))?.extract()?;
    Ok(!is_writable && treadle_serialise::is_array(array)?)
}
