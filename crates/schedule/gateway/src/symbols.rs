//! Interned strings.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use treadle_types::Symbol;

/// Strings by number. They are names of workers, hosts, resources and functions: few, and kept.
#[derive(Debug)]
pub(crate) struct Symbols {
    by_text: BTreeMap<Arc<str>, Symbol>,
    texts: Vec<Arc<str>>,
}

/// How many strings are kept. Names beyond share one number, so that a client that makes up names
/// does not fill the memory.
const MOST: usize = 1 << 20;

impl Symbols {
    /// The empty string is number 0.
    pub(crate) fn new() -> Self {
        let mut symbols = Self {
            by_text: BTreeMap::new(),
            texts: Vec::new(),
        };
        symbols.intern("");
        symbols
    }

    /// The number of a string.
    pub(crate) fn intern(&mut self, text: &str) -> Symbol {
        if let Some(&symbol) = self.by_text.get(text) {
            return symbol;
        }
        if self.texts.len() >= MOST {
            return Symbol(0);
        }
        let symbol = Symbol(self.texts.len() as u32);
        let text: Arc<str> = text.into();
        self.texts.push(Arc::clone(&text));
        self.by_text.insert(text, symbol);
        symbol
    }

    /// The string.
    pub(crate) fn text(&self, symbol: Symbol) -> &str {
        self.texts.get(symbol.0 as usize).map_or("", |text| text)
    }
}
