//! What the view looks like, at any size of the terminal. Decides nothing.

use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table};

use super::board::{Board, Ending, Held, HeldFor, How};
use super::choices::{Choices, Column};
use crate::durations;

/// Below this height there is no room for what ended.
const ENDINGS_NEED: u16 = 10;
/// Below this height there is none for the keys.
const FOOTER_NEEDS: u16 = 4;
/// Below these widths columns are left out, the least important first.
const WAITERS_NAMED_NEED: u16 = 72;
const HELD_NEEDS: u16 = 50;
const HOLDER_NEEDS: u16 = 36;
const TIME_WIDTH: u16 = 9;
const KEYS: &str = "q quit  / filter  n h a r w sort  l losses only  \u{2191}\u{2193} scroll";

/// What is shown.
pub(crate) struct View<'a> {
    pub(crate) board: &'a Board,
    pub(crate) choices: &'a Choices,
    /// The store as messages name it.
    pub(crate) store: &'a str,
    pub(crate) interval: Duration,
    /// Since when the store gives no answer, and what is known of it.
    pub(crate) trouble: Option<(Instant, String)>,
    pub(crate) now: Instant,
    pub(crate) colours: bool,
}

impl View<'_> {
    /// Draws it. Returns how many names there is room for.
    pub(crate) fn draw(&self, frame: &mut Frame<'_>) -> usize {
        let area = frame.area();
        let endings = if area.height >= ENDINGS_NEED { (area.height / 3).min(12) } else { 0 };
        let footer = u16::from(area.height >= FOOTER_NEEDS);
        let [head, names, ended, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Fill(1),
            Constraint::Length(endings),
            Constraint::Length(footer),
        ])
        .areas(area);
        let chosen = self.choices.chosen(self.board, self.now);
        frame.render_widget(Paragraph::new(self.head(chosen.len(), head.width)), head);
        frame.render_widget(self.names(&chosen, names), names);
        if endings > 0 {
            frame.render_widget(Paragraph::new(self.ended(ended)), ended);
        }
        frame.render_widget(Paragraph::new(self.foot(foot.width)), foot);
        usize::from(names.height.saturating_sub(1))
    }

    fn head(&self, chosen: usize, width: u16) -> Line<'static> {
        if let Some((since, what)) = &self.trouble {
            let since = show(self.now.saturating_duration_since(*since));
            let seen = match self.board.read_at() {
                Some(at) => format!("; shown: {} ago", show(self.now.saturating_duration_since(at))),
                None => String::new(),
            };
            let what = what.strip_prefix(self.store).unwrap_or(what).trim_start_matches([':', ' ']);
            let text = format!("{}: no answer for {since}{seen}: {what}", self.store);
            return Line::styled(fit(&text, width), self.style(Color::Red).add_modifier(Modifier::BOLD));
        }
        let all = self.board.held().count();
        let waiting: usize = self.board.held().map(|held| held.waiters.len()).sum();
        let more = if self.board.more() { " and more" } else { "" };
        let filtered = if chosen == all { String::new() } else { format!("{chosen} of ") };
        let counts = match self.board.read_at() {
            None => "connecting".to_owned(),
            Some(_) => format!("{filtered}{all}{more} held, {waiting} waiting"),
        };
        let text = format!("{counts}   every {}   {}", durations::show(self.interval), self.store);
        Line::styled(fit(&text, width), Style::new().add_modifier(Modifier::BOLD))
    }

    fn names(&self, chosen: &[&Held], area: Rect) -> Table<'static> {
        let columns = columns(area.width);
        let rows = chosen.iter().skip(self.choices.scrolled).take(usize::from(area.height));
        let longest = |of: fn(&Held) -> String| {
            let lengths = chosen.iter().map(|held| Span::raw(of(held)).width());
            u16::try_from(lengths.max().unwrap_or(0).max(8)).unwrap_or(u16::MAX)
        };
        let (name, holder) = (longest(|held| held.name.clone()), longest(|held| held.holder.to_string()));
        let most = area.width.saturating_mul(2) / 5;
        let constraints: Vec<_> = columns
            .iter()
            .map(|column| match column {
                Column::Name if columns.len() <= 2 => Constraint::Fill(1),
                Column::Name => Constraint::Length(name.min(most)),
                Column::Holder => Constraint::Length(holder.min(most)),
                Column::Held | Column::Remaining => Constraint::Length(TIME_WIDTH),
                Column::Waiters if area.width < WAITERS_NAMED_NEED => Constraint::Length(TIME_WIDTH - 1),
                Column::Waiters => Constraint::Fill(1),
            })
            .collect();
        let widths = Layout::horizontal(constraints.iter().copied())
            .spacing(1)
            .split(Rect { height: 1, ..area })
            .iter()
            .map(|cell| cell.width)
            .collect::<Vec<_>>();
        let cells = |held: &Held| -> Vec<Cell<'static>> {
            columns.iter().zip(&widths).map(|(column, width)| self.cell(*column, held, *width)).collect()
        };
        let head = columns.iter().zip(&widths).map(|(column, width)| {
            let text = format!("{}{}", column.title(), self.choices.mark(*column));
            Cell::from(fit(&text, *width))
        });
        Table::new(rows.map(|held| Row::new(cells(held))), constraints)
            .header(Row::new(head).style(Style::new().add_modifier(Modifier::REVERSED)))
            .column_spacing(1)
    }

    fn cell(&self, column: Column, held: &Held, width: u16) -> Cell<'static> {
        let text = match column {
            Column::Name => held.name.clone(),
            Column::Holder => held.holder.to_string(),
            Column::Held => held_for(held.held(self.now)),
            Column::Remaining => held.remaining(self.now).map_or_else(|| "no end".to_owned(), show),
            Column::Waiters => match held.waiters.as_slice() {
                [] => "-".to_owned(),
                waiters if width < TIME_WIDTH => waiters.len().to_string(),
                waiters => format!("{}: {}", waiters.len(), waiters.join(", ")),
            },
        };
        let style = match column {
            Column::Remaining if held.is_overdue(self.now) => self.style(Color::Red),
            Column::Waiters if !held.waiters.is_empty() => self.style(Color::Yellow),
            _ => Style::new(),
        };
        Cell::from(Span::styled(fit(&text, width), style))
    }

    fn ended(&self, area: Rect) -> Vec<Line<'static>> {
        let what = if self.choices.losses_only { "LOST LATELY" } else { "ENDED LATELY" };
        let title = format!("{what:<width$}", width = usize::from(area.width));
        let mut lines = vec![Line::styled(title, Style::new().add_modifier(Modifier::REVERSED))];
        let shown = self.board.endings().filter(|ending| self.choices.shows(ending));
        lines.extend(shown.take(usize::from(area.height.saturating_sub(1))).map(|ending| {
            let style = if ending.how.is_loss() { self.style(Color::Red) } else { Style::new() };
            Line::styled(fit(&self.ending(ending), area.width), style)
        }));
        lines
    }

    fn ending(&self, ending: &Ending) -> String {
        let next = ending.next.as_deref();
        let then = next.map_or_else(String::new, |next| format!(", then {next}"));
        let how = match ending.how {
            How::Released => format!("released{then}"),
            How::HandedOver => format!("handed over to {}", next.unwrap_or("a waiter")),
            How::Expired => format!("EXPIRED{then}"),
            How::ReleasedOrExpired => format!("released or expired{then}"),
            How::Broken => format!("BROKEN by {}", next.unwrap_or("an operator")),
        };
        let ago = show(self.now.saturating_duration_since(ending.at));
        format!("{ago:>6} ago  {}  {}: {how} after {}", ending.name, ending.holder, held_for(ending.held))
    }

    fn foot(&self, width: u16) -> Line<'static> {
        let dim = Style::new().add_modifier(Modifier::DIM);
        let (text, style) = match (self.choices.typing, self.choices.filter.as_str()) {
            (true, filter) => (format!("filter: {filter}_  (Enter keeps it, Esc clears it)"), Style::new()),
            (false, "") => (KEYS.to_owned(), dim),
            (false, filter) => (format!("filter: {filter}  (Esc clears it)  {KEYS}"), Style::new()),
        };
        Line::styled(fit(&text, width), style)
    }

    fn style(&self, colour: Color) -> Style {
        if self.colours { Style::new().fg(colour) } else { Style::new().add_modifier(Modifier::BOLD) }
    }
}

/// The columns there is room for.
fn columns(width: u16) -> Vec<Column> {
    let mut columns = vec![Column::Name];
    if width >= HOLDER_NEEDS {
        columns.push(Column::Holder);
    }
    if width >= HELD_NEEDS {
        columns.push(Column::Held);
    }
    columns.push(Column::Remaining);
    if width >= HELD_NEEDS {
        columns.push(Column::Waiters);
    }
    columns
}

fn held_for(held: HeldFor) -> String {
    format!("{}{}", show(held.time), if held.at_least { "+" } else { "" })
}

/// A time that does not flicker: whole seconds, tenths below ten.
fn show(time: Duration) -> String {
    let tenths = u64::try_from(time.as_millis() / 100).unwrap_or(u64::MAX);
    match tenths {
        0..100 => format!("{}.{}s", tenths / 10, tenths % 10),
        _ => durations::show(Duration::from_secs(time.as_secs())),
    }
}

/// The text, cut visibly where it is wider than its place.
fn fit(text: &str, width: u16) -> String {
    let width = usize::from(width);
    if Span::raw(text).width() <= width {
        return text.to_owned();
    }
    let mut cut = text.to_owned();
    while Span::raw(cut.as_str()).width() + 1 > width && cut.pop().is_some() {}
    if width > 0 { cut + "\u{2026}" } else { cut }
}
