//! The report: rows with their verdicts, as Markdown and JSON.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

/// The outcome of a row: what was done, what the driver reported, what GPU Bailiff did, and what is
/// wrong.
pub(crate) struct Outcome {
    pub(crate) cells: [String; 3],
    pub(crate) wrong: Vec<&'static str>,
}

/// An outcome, or the reason why the row was not tried.
pub(crate) type Tried = Result<Outcome, String>;

/// Builds an outcome from claims. For each claim: whether it holds, and what is wrong if it does not.
#[expect(clippy::unnecessary_wraps, reason = "parts end with it")]
pub(crate) fn outcome(cells: [&str; 3], claims: &[(bool, &'static str)]) -> Tried {
    let wrong = claims.iter().filter(|claim| !claim.0).map(|claim| claim.1).collect();
    Ok(Outcome { cells: cells.map(str::to_owned), wrong })
}

/// One line in the table.
pub(crate) struct Line {
    pub(crate) id: &'static str,
    pub(crate) claim: &'static str,
    pub(crate) tried: Tried,
}

impl Line {
    /// Returns the verdict and its reason.
    fn verdict(&self) -> (&'static str, String) {
        match &self.tried {
            Err(why) => ("not tried", why.clone()),
            Ok(outcome) if outcome.wrong.is_empty() => ("agree", String::new()),
            Ok(outcome) => ("disagree", outcome.wrong.join("; ")),
        }
    }

    /// Returns all columns.
    pub(crate) fn cells(&self) -> [String; 6] {
        let [done, driver, published] =
            self.tried.as_ref().map_or_else(|_| Default::default(), |it| it.cells.clone());
        let (verdict, why) = self.verdict();
        let verdict = if why.is_empty() { verdict.to_owned() } else { format!("{verdict}: {why}") };
        [self.id.to_owned(), self.claim.to_owned(), done, driver, published, verdict]
    }
}

/// The whole report.
pub(crate) struct Report {
    pub(crate) driver: String,
    pub(crate) gpu: String,
    pub(crate) lines: Vec<Line>,
}

impl Report {
    /// Writes `report.md` and `report.json`.
    pub(crate) fn save(&self, out: &Path) -> Result<(), String> {
        fs::create_dir_all(out)
            .and_then(|()| {
                fs::write(out.join("report.md"), format!("# Hardware report\n\n{}", self.markdown()))
            })
            .and_then(|()| fs::write(out.join("report.json"), format!("{:#}\n", self.json())))
            .map_err(|error| format!("{}: {error}", out.display()))
    }

    pub(crate) fn disagreements(&self) -> usize {
        self.lines.iter().filter(|line| line.verdict().0 == "disagree").count()
    }

    pub(crate) fn json(&self) -> Value {
        let row = |line: &Line| {
            let ([id, claim, done, driver, published, _], (verdict, why)) = (line.cells(), line.verdict());
            json!({"id": id, "claim": claim, "done": done, "driver": driver, "published": published, "verdict": verdict, "why": why})
        };
        let rows: Vec<Value> = self.lines.iter().map(row).collect();
        json!({"driver": self.driver, "gpu": self.gpu, "rows": rows})
    }

    pub(crate) fn markdown(&self) -> String {
        let head =
            "| row | claim | done | the driver answered | published | verdict |\n|---|---|---|---|---|---|\n";
        let cell = |cell: String| cell.replace('|', "\\|").replace('\n', " ");
        let lines = self.lines.iter().map(|line| format!("| {} |\n", line.cells().map(cell).join(" | ")));
        format!("{}, driver {}.\n\n{head}{}", self.gpu, self.driver, lines.collect::<String>())
    }
}
