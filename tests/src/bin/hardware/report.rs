//! Rows, and how they are judged and written.

use std::fmt;

use serde_json::{Value, json};

/// What came of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Agree,
    Disagree(String),
    NotTried(String),
}

impl Verdict {
    /// Agrees where every claim holds; otherwise names those that do not.
    pub(crate) fn of(claims: &[(bool, &str)]) -> Self {
        let broken: Vec<&str> = claims.iter().filter(|claim| !claim.0).map(|claim| claim.1).collect();
        if broken.is_empty() { Self::Agree } else { Self::Disagree(broken.join("; ")) }
    }

    fn word(&self) -> &'static str {
        match self {
            Self::Agree => "agree",
            Self::Disagree(_) => "disagree",
            Self::NotTried(_) => "not tried",
        }
    }

    fn why(&self) -> Option<&str> {
        match self {
            Self::Agree => None,
            Self::Disagree(why) | Self::NotTried(why) => Some(why),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.why() {
            Some(why) => write!(formatter, "{}: {why}", self.word()),
            None => formatter.write_str(self.word()),
        }
    }
}

/// One line of the table.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) id: &'static str,
    /// What must be so.
    pub(crate) claim: &'static str,
    /// What was done.
    pub(crate) done: String,
    pub(crate) driver: String,
    /// What the exporter published, or another program of ours did.
    pub(crate) published: String,
    pub(crate) verdict: Verdict,
}

impl Row {
    pub(crate) fn not_tried(id: &'static str, claim: &'static str, why: impl Into<String>) -> Self {
        let (done, driver, published) = (String::new(), String::new(), String::new());
        Self { id, claim, done, driver, published, verdict: Verdict::NotTried(why.into()) }
    }
}

/// The whole report.
pub(crate) struct Report {
    pub(crate) driver: String,
    pub(crate) gpu: String,
    /// What must be known to read it.
    pub(crate) notes: Vec<String>,
    pub(crate) rows: Vec<Row>,
}

impl Report {
    pub(crate) fn disagreements(&self) -> usize {
        self.rows.iter().filter(|row| matches!(row.verdict, Verdict::Disagree(_))).count()
    }

    pub(crate) fn json(&self) -> Value {
        let row = |row: &Row| {
            json!({
                "id": row.id, "claim": row.claim, "done": row.done, "driver": row.driver,
                "published": row.published, "verdict": row.verdict.word(), "why": row.verdict.why(),
            })
        };
        let rows: Vec<Value> = self.rows.iter().map(row).collect();
        json!({"driver": self.driver, "gpu": self.gpu, "notes": self.notes, "rows": rows})
    }

    pub(crate) fn markdown(&self) -> String {
        let mut text = format!("{}, driver {}.\n\n", self.gpu, self.driver);
        for note in &self.notes {
            text.extend([note.as_str(), "\n\n"]);
        }
        text +=
            "| row | claim | done | the driver answered | published | verdict |\n|---|---|---|---|---|---|\n";
        for row in &self.rows {
            let verdict = row.verdict.to_string();
            let cells = [row.id, row.claim, &row.done, &row.driver, &row.published, &verdict];
            let cells: Vec<String> =
                cells.iter().map(|cell| cell.replace('|', "\\|").replace('\n', " ")).collect();
            text.extend(["| ", &cells.join(" | "), " |\n"]);
        }
        text
    }
}
