//! What the user chose with keys: the order, the filter, how far the list is scrolled.

use std::cmp::Ordering;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::board::{Board, Ending, Held};

/// A filter longer than any name finds nothing.
const LONGEST_FILTER: usize = 512;

/// A column of the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Column {
    #[default]
    Name,
    Holder,
    Held,
    Remaining,
    Waiters,
}

impl Column {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Name => "NAME",
            Self::Holder => "HOLDER",
            Self::Held => "HELD",
            Self::Remaining => "LEFT",
            Self::Waiters => "WAITERS",
        }
    }
}

/// What is shown, and how.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choices {
    order: Column,
    reversed: bool,
    pub(crate) filter: String,
    /// Whether keys go into the filter.
    pub(crate) typing: bool,
    pub(crate) losses_only: bool,
    /// Names above the first one shown.
    pub(crate) scrolled: usize,
}

/// What a key asks the program to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    GoOn,
    Stop,
    Quit,
}

impl Choices {
    /// Takes a key. `page` is how many names there is room for.
    pub(crate) fn press(&mut self, key: KeyEvent, page: usize) -> Wish {
        if key.kind == KeyEventKind::Release {
            return Wish::GoOn;
        }
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Wish::Quit,
            KeyCode::Char('z') if key.modifiers.contains(KeyModifiers::CONTROL) => return Wish::Stop,
            KeyCode::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            code if self.typing => self.type_filter(code),
            KeyCode::Char('q') => return Wish::Quit,
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('l') => self.losses_only = !self.losses_only,
            KeyCode::Char('n') => self.sort_by(Column::Name),
            KeyCode::Char('h') => self.sort_by(Column::Holder),
            KeyCode::Char('a') => self.sort_by(Column::Held),
            KeyCode::Char('r') => self.sort_by(Column::Remaining),
            KeyCode::Char('w') => self.sort_by(Column::Waiters),
            KeyCode::Down | KeyCode::Char('j') => self.scrolled = self.scrolled.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => self.scrolled = self.scrolled.saturating_sub(1),
            KeyCode::PageDown | KeyCode::Char(' ') => self.scrolled = self.scrolled.saturating_add(page),
            KeyCode::PageUp => self.scrolled = self.scrolled.saturating_sub(page),
            KeyCode::Home => self.scrolled = 0,
            KeyCode::End => self.scrolled = usize::MAX,
            _ => {}
        }
        Wish::GoOn
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(character) if self.filter.len() < LONGEST_FILTER => self.filter.push(character),
            _ => {}
        }
        self.scrolled = 0;
    }

    /// Sorts by a column; the second time the other way round.
    fn sort_by(&mut self, column: Column) {
        // Who holds longest and who is awaited most is what one looks for.
        let largest_first = matches!(column, Column::Held | Column::Waiters);
        self.reversed = if self.order == column { !self.reversed } else { largest_first };
        self.order = column;
    }

    /// Keeps the list from being scrolled out of sight.
    pub(crate) fn clamp(&mut self, board: &Board, page: usize) {
        let names = board.held().filter(|held| self.matches(held)).count();
        self.scrolled = self.scrolled.min(names.saturating_sub(page));
    }

    /// The names to show, in their order.
    pub(crate) fn chosen<'a>(&self, board: &'a Board, now: Instant) -> Vec<&'a Held> {
        let mut chosen: Vec<_> = board.held().filter(|held| self.matches(held)).collect();
        let remaining = |held: &Held| held.remaining(now).unwrap_or(Duration::MAX);
        let compare = |a: &&Held, b: &&Held| -> Ordering {
            match self.order {
                Column::Name => a.name.cmp(&b.name),
                Column::Holder => a.holder.to_string().cmp(&b.holder.to_string()),
                Column::Held => a.held(now).time.cmp(&b.held(now).time),
                Column::Remaining => remaining(a).cmp(&remaining(b)),
                Column::Waiters => a.waiters.len().cmp(&b.waiters.len()),
            }
        };
        // Stable, and by name before: equal ones do not jump about.
        chosen.sort_by(|a, b| if self.reversed { compare(b, a) } else { compare(a, b) });
        chosen
    }

    /// Whether an ending is to be shown.
    pub(crate) fn shows(&self, ending: &Ending) -> bool {
        (!self.losses_only || ending.how.is_loss()) && self.finds(&[&ending.name, &ending.holder])
    }

    /// How the title of this column shows the order.
    pub(crate) fn mark(&self, column: Column) -> &'static str {
        match (self.order == column, self.reversed) {
            (false, _) => "",
            (true, false) => " \u{25b2}",
            (true, true) => " \u{25bc}",
        }
    }

    fn matches(&self, held: &Held) -> bool {
        let holder = held.holder.to_string();
        self.finds(&[&held.name, &holder]) || held.waiters.iter().any(|waiter| self.finds(&[waiter]))
    }

    /// Capitals do not matter.
    fn finds(&self, texts: &[&str]) -> bool {
        let filter = self.filter.to_lowercase();
        filter.is_empty() || texts.iter().any(|text| text.to_lowercase().contains(&filter))
    }
}
