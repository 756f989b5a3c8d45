"use strict";

// Renders openapi.json and sends requests to this server only. Content is inserted as text, never as markup.
const root = document.currentScript.dataset.root;

function make(tag, text, kind) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (kind) node.className = kind;
  return node;
}

function resolve(spec, schema) {
  return schema && schema.$ref ? spec.components.schemas[schema.$ref.split("/").pop()] : schema || {};
}

function example(spec, schema, depth) {
  const found = resolve(spec, schema);
  if (found.default !== undefined) return found.default;
  if (found.enum) return found.enum[0];
  const choices = found.anyOf || found.oneOf;
  if (choices) return example(spec, choices.find((one) => one.type !== "null") || {}, depth);
  const kind = Array.isArray(found.type) ? found.type[0] : found.type;
  if (kind === "object" || found.properties) {
    const value = {};
    const wanted = found.required || [];
    const names = Object.keys(found.properties || {}).filter((name) => wanted.includes(name));
    if (depth < 3) names.forEach((name) => { value[name] = example(spec, found.properties[name], depth + 1); });
    return value;
  }
  if (kind === "array") return depth < 3 ? [example(spec, found.items, depth + 1)] : [];
  if (kind === "integer" || kind === "number") return found.minimum || 0;
  if (kind === "boolean") return false;
  return found.format === "uuid" ? "00000000-0000-0000-0000-000000000000" : "";
}

function fieldTable(spec, schema) {
  const found = resolve(spec, schema);
  const table = make("table");
  Object.entries(found.properties || {}).forEach(([name, field]) => {
    const row = make("tr");
    row.append(make("th", name), make("td", describe(field)), make("td", field.description || ""));
    table.append(row);
  });
  return table;
}

function describe(field) {
  if (field.$ref) return field.$ref.split("/").pop();
  if (field.anyOf) return field.anyOf.map(describe).join(" or ");
  const kind = field.type === "array" ? `list of ${describe(field.items || {})}` : field.type || "any";
  const limits = ["minimum", "maximum", "minLength", "maxLength"].filter((name) => name in field);
  return [kind, ...limits.map((name) => `${name} ${field[name]}`)].join(", ");
}

function parameterRows(parameters) {
  const table = make("table");
  const inputs = parameters.map((parameter) => {
    const row = make("tr");
    const input = make("input");
    input.placeholder = parameter.schema.default === undefined ? "" : String(parameter.schema.default);
    const cell = make("td");
    cell.append(input);
    row.append(make("th", `${parameter.name}${parameter.required ? " *" : ""}`), cell, make("td", parameter.description || ""));
    table.append(row);
    return [parameter, input];
  });
  return [table, inputs];
}

async function send(method, path, inputs, body, result) {
  let target = path;
  const query = new URLSearchParams();
  const headers = {};
  inputs.forEach(([parameter, input]) => {
    if (parameter.in === "path") target = target.replace(`{${parameter.name}}`, encodeURIComponent(input.value));
    else if (input.value !== "" && parameter.in === "query") query.append(parameter.name, input.value);
    else if (input.value !== "") headers[parameter.name] = input.value;
  });
  const token = document.getElementById("token").value;
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body) headers["Content-Type"] = "application/json";
  const address = query.size ? `${target}?${query}` : target;
  result.textContent = `${method} ${address}\n`;
  try {
    const response = await fetch(root + address, { method, headers, body: body ? body.value : undefined });
    result.textContent += `${response.status} ${response.statusText}\n`;
    const id = response.headers.get("message-id");
    if (id) result.textContent += `message-id: ${id}\n`;
    const reader = response.body ? response.body.pipeThrough(new TextDecoderStream()).getReader() : null;
    let text = "";
    while (reader) {
      const { done, value } = await reader.read();
      if (done) break;
      text += value;
      if ((response.headers.get("content-type") || "").includes("event-stream")) result.textContent += value;
    }
    if (!(response.headers.get("content-type") || "").includes("event-stream")) {
      try { text = JSON.stringify(JSON.parse(text), null, 2); } catch { /* not JSON: show unchanged */ }
      result.textContent += `\n${text}`;
    }
  } catch (error) {
    result.textContent += String(error);
  }
}

function routeBox(spec, method, path, operation) {
  const box = make("details");
  const title = make("summary");
  title.append(make("span", method.toUpperCase(), "method"), make("span", path, "path"), make("span", operation.summary, "words"));
  box.append(title);
  box.addEventListener("toggle", () => { if (box.open && box.children.length === 1) fill(box, spec, method, path, operation); });
  return box;
}

function fill(box, spec, method, path, operation) {
  const inside = make("div");
  inside.append(make("p", operation.description || operation.summary));
  if (operation["x-scope"]) inside.append(make("p", `Scope: ${operation["x-scope"]}`));
  const [table, inputs] = parameterRows(operation.parameters || []);
  inside.append(table);
  let body = null;
  const content = operation.requestBody && operation.requestBody.content["application/json"];
  if (content) {
    body = make("textarea");
    body.value = JSON.stringify(example(spec, content.schema, 0), null, 2);
    inside.append(make("p", "Body"), fieldTable(spec, content.schema), body);
  }
  const button = make("button", "Send");
  const result = make("pre");
  button.addEventListener("click", () => send(method.toUpperCase(), path, inputs, body, result));
  inside.append(button, result);
  box.append(inside);
}

function show(spec) {
  document.getElementById("about").textContent = `${spec.info.summary} Version ${spec.info.version}. ${spec.info.description}`;
  const groups = new Map();
  Object.entries(spec.paths).forEach(([path, methods]) => Object.entries(methods).forEach(([method, operation]) => {
    const tag = operation.tags[0];
    if (!groups.has(tag)) groups.set(tag, []);
    groups.get(tag).push([`${path} ${operation.summary}`.toLowerCase(), routeBox(spec, method, path, operation)]);
  }));
  const place = document.getElementById("routes");
  const boxes = [];
  groups.forEach((entries, tag) => {
    place.append(make("h2", tag));
    entries.forEach(([words, box]) => { place.append(box); boxes.push([words, box]); });
  });
  document.getElementById("find").addEventListener("input", (event) => {
    const wanted = event.target.value.toLowerCase();
    boxes.forEach(([words, box]) => { box.hidden = !words.includes(wanted); });
  });
}

fetch(`${root}/openapi.json`).then((response) => response.json()).then(show);
