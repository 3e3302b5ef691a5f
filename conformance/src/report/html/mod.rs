//! One page for all backends, without scripts or other files. It is also well-formed XML.

mod plot;
mod timeline;

use std::collections::BTreeMap;
use std::fmt::Write;

use super::text::{escape, moment, plain, time};
use super::{Backend, Checked, Failed, Result, Weaker, counts, place};

const STYLE: &str = include_str!("style.css");

/// Writes the page.
pub(super) fn page(backends: &[Backend]) -> String {
    let mut page = String::new();
    let _ = write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <meta name=\"color-scheme\" content=\"light dark\"/>\n\
         <title>distlock conformance</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>Conformance</h1>\n"
    );
    overview(&mut page, backends);
    failures(&mut page, backends);
    clauses(&mut page, backends);
    under_faults(&mut page, backends);
    plot::section(&mut page, backends);
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

fn overview(page: &mut String, backends: &[Backend]) {
    page.push_str(
        "<table class=\"overview\">\n<thead><tr><th>Backend</th><th>Passed</th><th>Failed</th><th>Refused by design</th>\
         <th>Level</th><th>Time</th><th>Started</th><th>Seed</th></tr></thead>\n<tbody>\n",
    );
    for backend in backends {
        let [passed, failed, refused] = counts(&backend.checks);
        let class = if failed > 0 { "failed" } else { "passed" };
        let _ = writeln!(
            page,
            "<tr><th scope=\"row\">{}</th><td>{passed}</td><td class=\"{class}\">{failed}</td><td>{refused}</td>\
             <td>{}</td><td>{}</td><td>{}</td><td><code>{}</code></td></tr>",
            escape(&backend.name),
            backend.level,
            time(backend.took_ms),
            moment(backend.started_unix_ms),
            escape(&backend.seed),
        );
    }
    page.push_str("</tbody>\n</table>\n");
    for backend in backends {
        for Weaker { clause, why } in &backend.weaker {
            let [name, clause, why] = [&backend.name, clause, why].map(|text| escape(text));
            let _ =
                writeln!(page, "<p class=\"weaker\"><b>{name}</b> keeps <b>{clause}</b> in a weaker form: {why}</p>");
        }
    }
}

fn failures(page: &mut String, backends: &[Backend]) {
    let failed = |backend: &'_ Backend| backend.checks.iter().any(|check| check.failed().is_some());
    if !backends.iter().any(failed) {
        return;
    }
    page.push_str("<h2>Failures</h2>\n");
    for backend in backends {
        for check in &backend.checks {
            if let Some(failed) = check.failed() {
                failure(page, backend, check, failed);
            }
        }
    }
}

fn failure(page: &mut String, backend: &Backend, check: &Checked, failed: &Failed) {
    let [id, name, clause, text, promise] =
        [&anchor(backend, check), &check.name, &check.clause, &check.text, &check.promise].map(|text| escape(text));
    let _ = write!(
        page,
        "<section class=\"failure\" id=\"{id}\">\n<h3>{} <span class=\"of\">on {}</span></h3>\n\
         <p class=\"message\">{}</p>\n",
        name,
        escape(&backend.name),
        escape(&failed.message),
    );
    if !failed.shown_by.is_empty() {
        page.push_str("<ul class=\"calls\">\n");
        for call in &failed.shown_by {
            let _ = writeln!(page, "<li>{}</li>", escape(&call.to_string()));
        }
        page.push_str("</ul>\n");
    }
    for line in &failed.renewals {
        let _ = writeln!(page, "<p>Renewals: {}</p>", escape(line));
    }
    timeline::figure(page, failed);
    let _ = write!(
        page,
        "<dl>\n<dt>Clause</dt><dd><b>{clause}</b> {text}</dd>\n<dt>Promise</dt><dd>{promise}</dd>\n\
         <dt>Found by</dt><dd><code>{}</code></dd>\n<dt>Repeat</dt><dd><code>{}</code></dd>\n</dl>\n</section>\n",
        escape(&failed.location),
        escape(&failed.command),
    );
}

/// Returns the anchor of a failure, in characters that a link may contain.
fn anchor(backend: &Backend, check: &Checked) -> String {
    format!("{}.{}", plain(&backend.name), plain(&check.name))
}

/// Writes a row for each check, by clause, and a column for each backend.
fn clauses(page: &mut String, backends: &[Backend]) {
    let mut rows: BTreeMap<_, Vec<(&str, &Checked)>> = BTreeMap::new();
    for check in backends.iter().flat_map(|backend| &backend.checks) {
        let of_clause = rows.entry(place(&check.clause)).or_default();
        if !of_clause.iter().any(|(name, _)| *name == check.name) {
            of_clause.push((&check.name, check));
        }
    }
    page.push_str("<h2>Clauses</h2>\n<div class=\"wide\">\n<table class=\"clauses\">\n<thead><tr><th>Check</th>");
    for backend in backends {
        let _ = write!(page, "<th>{}</th>", escape(&backend.name));
    }
    page.push_str("</tr></thead>\n");
    for ((.., clause), checks) in rows {
        let text = checks.first().map(|(_, check)| escape(&check.text)).unwrap_or_default();
        let columns = backends.len() + 1;
        let _ = writeln!(
            page,
            "<tbody>\n<tr class=\"clause\"><th colspan=\"{columns}\" scope=\"rowgroup\">{} <span>{text}</span></th></tr>",
            escape(&clause),
        );
        for (name, check) in checks {
            let word = name.rsplit("::").next().unwrap_or_default();
            let _ = write!(
                page,
                "<tr><th scope=\"row\">{}<p>{}</p></th>",
                escape(word).replace('_', "_<wbr/>"),
                escape(&check.promise)
            );
            for backend in backends {
                page.push_str(&result(backend, name));
            }
            page.push_str("</tr>\n");
        }
        page.push_str("</tbody>\n");
    }
    page.push_str("</table>\n</div>\n");
}

fn result(backend: &Backend, name: &str) -> String {
    let Some(check) = backend.checks.iter().find(|check| check.name == name) else {
        return "<td class=\"none\" title=\"did not run, or does not apply to this backend\"></td>".into();
    };
    let runs = if check.runs > 1 { format!(" × {}", check.runs) } else { String::new() };
    let is_weaker = backend.weaker.iter().any(|weaker| weaker.clause == check.clause);
    match &check.result {
        Result::Passed => {
            let form = if is_weaker { " in a weaker form" } else { "" };
            format!("<td class=\"passed\">passed{form}<small>{}{runs}</small></td>", time(check.took_ms))
        }
        Result::Failed(_) => {
            let anchor = escape(&anchor(backend, check));
            format!(
                "<td class=\"failed\"><a href=\"#{anchor}\">failed</a><small>{}{runs}</small></td>",
                time(check.took_ms)
            )
        }
        Result::Refused(reason) => {
            format!("<td class=\"refused\">refused<small>{}</small></td>", escape(reason))
        }
    }
}

/// Writes the figures of checks that damage a deployment.
fn under_faults(page: &mut String, backends: &[Backend]) {
    let mut heading = "<h2>Under faults</h2>\n";
    for backend in backends {
        for check in &backend.checks {
            let Some(figures) = &check.figures else { continue };
            page.push_str(std::mem::take(&mut heading));
            let (name, of, text) = (escape(&check.name), escape(&backend.name), escape(&figures.to_string()));
            let _ =
                writeln!(page, "<h3>{name} <span class=\"of\">on {of}</span></h3>\n<pre class=\"wide\">{text}</pre>");
        }
    }
}
