//! Interned strings.

use std::collections::HashMap;
use std::sync::Arc;

use treadle_types::Symbol;

/// Strings by number. They are names of workers, hosts, resources and functions: few, and kept.
#[derive(Debug)]
pub(super) struct Symbols {
    by_text: HashMap<Arc<str>, Symbol>,
    texts: Vec<Arc<str>>,
}

/// How many strings are kept. Names beyond share one number, so that a client that makes up names
/// does not fill the memory.
const MOST: usize = 1 << 20;

impl Symbols {
    /// The empty string is number 0.
    pub(super) fn new() -> Self {
        let mut symbols = Self {
            by_text: HashMap::new(),
            texts: Vec::new(),
        };
        symbols.intern("");
        symbols
    }

    /// The number of a string.
    pub(super) fn intern(&mut self, text: &str) -> Symbol {
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
    pub(super) fn text(&self, symbol: Symbol) -> &str {
        self.texts.get(symbol.0 as usize).map_or("", |text| text)
    }
}
