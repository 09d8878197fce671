//! The API reference as a page.

use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};
use serde_json::{Map, Value};

use super::openapi;
use crate::App;
use crate::web::{PageContext, page};

/// Page that renders the OpenAPI document.
pub(super) async fn show(State(app): State<App>, visit: PageContext) -> Response {
    let document = openapi::value(&app);
    let tags = document["tags"].as_array().map(Vec::as_slice).unwrap_or_default();
    let content = html! {
        div.head {
            div {
                h1 { "API" }
                @for line in text(&document["info"], "description").split("\n\n") { p { (prose(line)) } }
                p { "Machine-readable: " a href="/openapi.json" { "/openapi.json" } "." }
            }
        }
        nav aria-label="Sections" {
            ul.chips { @for tag in tags { li { a href={ "#" (text(tag, "name")) } { (text(tag, "name")) } } } }
        }
        @for tag in tags { (section(document, tag)) }
    };
    page(&visit, "API", "API", content)
}

fn section(document: &Value, tag: &Value) -> Markup {
    let name = text(tag, "name");
    let empty = Map::new();
    let paths = document["paths"].as_object().unwrap_or(&empty);
    let operations = paths.iter().flat_map(|(path, item)| {
        let methods = item.as_object().into_iter().flatten();
        methods
            .filter(|(_, operation)| operation.is_object())
            .map(move |(method, operation)| (path, method, operation))
    });
    let mine = operations.filter(|(_, _, operation)| operation["tags"][0] == name);
    html! {
        section.card id=(name) aria-labelledby={ (name) "-title" } {
            header { h2 id={ (name) "-title" } { (name) } p.soft { (text(tag, "description")) } }
            div.body { @for (path, method, operation) in mine { (one(document, path, method, operation)) } }
        }
    }
}

fn one(document: &Value, path: &str, method: &str, operation: &Value) -> Markup {
    let parameters = operation["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
    let body = json_of(&operation["requestBody"]);
    let answer = operation["responses"].get("200").map(json_of).unwrap_or(&Value::Null);
    html! {
        details {
            summary { code { b { (method.to_uppercase()) } " " (path) } " — " (text(operation, "summary")) }
            @for line in text(operation, "description").split("\n\n").filter(|line| !line.is_empty()) {
                p { (prose(line)) }
            }
            @if !parameters.is_empty() {
                h3 { "Parameters" }
                table {
                    thead { tr { th scope="col" { "name" } th scope="col" { "in" } th scope="col" { "type" } th scope="col" { "description" } } }
                    tbody {
                        @for parameter in parameters {
                            tr {
                                td { code { (text(parameter, "name")) } @if parameter["required"] == true { " (required)" } }
                                td { (text(parameter, "in")) }
                                td { (kind(&parameter["schema"])) }
                                td { (prose(text(parameter, "description"))) }
                            }
                        }
                    }
                }
            }
            @if !body["schema"].is_null() { h3 { "Body" } (fields(document, &body["schema"])) }
            @if let Some(example) = example(document, &body["schema"]) {
                pre { code { (serde_json::to_string_pretty(example).unwrap_or_default()) } }
            }
            @if !answer["schema"].is_null() { h3 { "Response" } (fields(document, &answer["schema"])) }
            h3 { "Status" }
            dl.facts {
                @for (status, response) in operation["responses"].as_object().into_iter().flatten() {
                    div { dt { (status) } dd { (prose(text(response, "description"))) } }
                }
            }
        }
    }
}

/// Table of the fields of a schema.
fn fields(document: &Value, schema: &Value) -> Markup {
    let mut all = Vec::new();
    gather(document, schema, &mut all, 0);
    html! {
        @if all.is_empty() { p { (kind(schema)) } } @else {
            table {
                thead { tr { th scope="col" { "field" } th scope="col" { "type" } th scope="col" { "description" } } }
                tbody {
                    @for (name, field, required) in all {
                        tr {
                            td { code { (name) } @if required { " (required)" } }
                            td { (kind(field)) }
                            td { (prose(text(field, "description"))) }
                        }
                    }
                }
            }
        }
    }
}

type Field<'a> = (&'a str, &'a Value, bool);

fn gather<'a>(document: &'a Value, schema: &'a Value, all: &mut Vec<Field<'a>>, depth: u8) {
    let schema = resolved(document, schema);
    if depth > 8 {
        return;
    }
    for part in ["allOf", "oneOf"].iter().filter_map(|word| schema[*word].as_array()).flatten() {
        gather(document, part, all, depth + 1);
    }
    let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        all.push((name, field, required.iter().any(|one| one == name.as_str())));
    }
}

fn example<'a>(document: &'a Value, schema: &'a Value) -> Option<&'a Value> {
    let of = |schema: &'a Value| resolved(document, schema).get("example");
    of(schema).or_else(|| schema["oneOf"].as_array()?.iter().find_map(of))
}

fn resolved<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str().and_then(|name| name.strip_prefix('#')) {
        Some(pointer) => document.pointer(pointer).unwrap_or(&Value::Null),
        None => schema,
    }
}

/// Short name of a schema's type.
fn kind(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str() {
        return name.rsplit('/').next().unwrap_or_default().to_owned();
    }
    for word in ["oneOf", "allOf"] {
        if let Some(parts) = schema[word].as_array() {
            return parts.iter().map(kind).collect::<Vec<_>>().join(" or ");
        }
    }
    match &schema["type"] {
        Value::String(word) if word == "array" => format!("list of {}", kind(&schema["items"])),
        Value::String(word) => word.clone(),
        Value::Array(words) => words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" or "),
        _ => String::new(),
    }
}

fn json_of(part: &Value) -> &Value {
    &part["content"]["application/json"]
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

/// Render text with code in backquotes.
fn prose(text: &str) -> Markup {
    html! {
        @for (n, part) in text.split('`').enumerate() {
            @if n % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}
