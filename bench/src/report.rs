//! What a benchmark leaves: a table on standard output and in `bench/results/NAME.md`, and a plot beside it.

use std::error::Error;
use std::fmt::Write as _;
use std::path::PathBuf;

use plotters::prelude::*;

/// A table with a headline, notes and the machine it was measured on.
pub(crate) struct Report {
    name: &'static str,
    text: String,
}

impl Report {
    /// Begins a report; `question` says what is compared with what.
    pub(crate) fn new(name: &'static str, question: &str) -> Self {
        let mut report = Self { name, text: String::new() };
        report.line(&format!("# {name}"));
        report.line("");
        report.line(question);
        report.line("");
        report.line(&format!(
            "Machine: {}. Made by `cargo run --release -p leasehold-bench -- {name}`.",
            machine()
        ));
        report.line("");
        report
    }

    /// Adds a line of text.
    pub(crate) fn line(&mut self, line: &str) {
        println!("{line}");
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Adds a table; the first row is its head.
    pub(crate) fn table(&mut self, rows: &[Vec<String>]) {
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for (number, row) in rows.iter().enumerate() {
            let mut line = String::from("|");
            for (cell, width) in row.iter().zip(&widths) {
                let _ = write!(line, " {cell:<width$} |");
            }
            self.line(&line);
            if number == 0 {
                let rule: Vec<String> = widths.iter().map(|width| "-".repeat(width + 2)).collect();
                self.line(&format!("|{}|", rule.join("|")));
            }
        }
        self.line("");
    }

    /// Says whether a target is met; a missed one is said as loudly as a met one.
    pub(crate) fn target(&mut self, what: &str, met: bool) {
        self.line(&format!("- target {}: {what}", if met { "met" } else { "MISSED" }));
    }

    /// Writes the report below `bench/results/`.
    pub(crate) fn save(self) -> Result<(), Box<dyn Error>> {
        let path = results().join(format!("{}.md", self.name));
        std::fs::write(&path, self.text)?;
        println!("\nkept in bench/results/{}.md", self.name);
        Ok(())
    }
}

/// A line of a plot.
pub(crate) struct Series {
    pub(crate) label: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Draws lines over logarithmic axes into `bench/results/NAME.svg`.
pub(crate) fn plot(
    name: &str,
    title: &str,
    axes: (&str, &str),
    series: &[Series],
) -> Result<(), Box<dyn Error>> {
    let path = results().join(format!("{name}.svg"));
    let all = || series.iter().flat_map(|series| series.points.iter());
    let span = |of: fn(&(f64, f64)) -> f64| {
        let least = all().map(of).fold(f64::INFINITY, f64::min);
        let most = all().map(of).fold(0.0, f64::max);
        (least / 1.5)..(most * 1.5)
    };
    let area = SVGBackend::new(&path, (900, 520)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 22))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(76)
        .build_cartesian_2d(span(|point| point.0).log_scale(), span(|point| point.1).log_scale())?;
    chart.configure_mesh().x_desc(axes.0).y_desc(axes.1).light_line_style(WHITE).draw()?;
    for (number, series) in series.iter().enumerate() {
        let color = Palette99::pick(number).to_rgba();
        chart
            .draw_series(LineSeries::new(series.points.iter().copied(), color.stroke_width(2)))?
            .label(&series.label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        chart.draw_series(series.points.iter().map(|point| Circle::new(*point, 4, color.filled())))?;
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3)).draw()?;
    area.present()?;
    println!("plot in bench/results/{name}.svg");
    Ok(())
}

fn results() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("results")
}

fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let model = std::fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|text| {
            text.lines().find_map(|line| {
                line.strip_prefix("model name")?.split_once(':').map(|(_, m)| m.trim().to_owned())
            })
        })
        .unwrap_or_else(|| "unknown processor".to_owned());
    format!("{cores} cores, {model}, {} {}", std::env::consts::OS, std::env::consts::ARCH)
}
