"""Derives the fields of config.json that Hugging Face's library transformers reads for each architecture that `orchestrate model
convert` writes to GGUF. Prints them as JSON:

    scripts/python-of transformers scripts/config-fields.py > models/files/tests/config-fields.json

The unit tests of the crate model-files decide for each field whether GGUF carries it. A field counts as read if the
architecture's config class declares it, or if the code of its causal language model mentions it. This code is the model's
classes, and the functions and base classes that they name, also in other modules of the library. The library's source is
parsed, never imported.
"""

import ast
import importlib.metadata
import importlib.util
import json
from functools import cache
from pathlib import Path

ARCHITECTURES = ("gemma", "gpt2", "llama", "mistral", "phi3", "qwen2", "qwen3")
CLASS_PREFIXES = {"gpt2": "GPT2"}
HEADS = {"gpt2": "LMHeadModel"}

PACKAGE = Path(importlib.util.find_spec("transformers").origin).parent

# Modules whose code computes logits from a config. Code of other modules (training, saving, device placement, the choice of
# tokens) is not followed.
SHARED_MODULES = ("cache_utils", "masking_utils", "modeling_layers", "modeling_rope_utils", "pytorch_utils")
SHARED_FOLDERS = ("integrations",)

# The methods of config classes that interpret the fields of a file.
CONFIG_METHODS = ("__post_init__", "convert_rope_params_to_dict", "standardize_rope_params")

# The names of variables that hold a config, and of variables that hold its RoPE settings.
CONFIG_NAMES = {"config", "text_config", "decoder_config", "effective_config", "layer_config"}
ROPE_NAMES = {"rope_parameters", "rope_parameters_dict", "rope_scaling"}


class Module:
    """The classes, functions and imports of a source file, by name."""

    def __init__(self, path):
        self.path = path
        self.definitions, self.imports = {}, {}
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
                for name in node.names:
                    self.imports[name.asname or name.name] = (base, name.name)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                self.definitions[node.name] = node


@cache
def module(path):
    return Module(path)


def find(path, name, follow=None):
    """The module and the node that define a name in the module at `path`; None for a name from a module that is not followed."""
    source, follow = module(path), follow or computes_logits
    if name in source.definitions:
        return path, source.definitions[name]
    if name not in source.imports:
        return None
    base, original = source.imports[name]
    for file in (base.with_suffix(".py"), base / "__init__.py", base / f"{original}.py"):
        if file.is_file() and follow(file) and (found := find(file, original, follow)):
            return found
    return None


def computes_logits(file):
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    is_model = parts[0] == "models" and len(parts) == 3 and parts[2].startswith(("modeling_", "configuration_"))
    return parts[0] in SHARED_MODULES or parts[0] in SHARED_FOLDERS or is_model


def used_nodes(path, name):
    """This class and every class and function that it uses, directly or not."""
    seen, waiting = {}, [(path, name)]
    while waiting:
        found = find(*waiting.pop())
        if found is None or id(found[1]) in seen:
            continue
        path, node = found
        seen[id(node)] = node
        waiting += [(path, child.id) for child in ast.walk(node) if isinstance(child, ast.Name)]
    return seen.values()


def is_config(node):
    return (
        isinstance(node, ast.Name) and node.id in CONFIG_NAMES
        or isinstance(node, ast.Attribute) and node.attr in CONFIG_NAMES
        or isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get_text_config"
    )


def is_rope(node):
    if isinstance(node, ast.Subscript):
        return is_rope(node.value)
    return isinstance(node, ast.Name) and node.id in ROPE_NAMES or isinstance(node, ast.Attribute) and node.attr in ROPE_NAMES


def text(node):
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def reads(node, is_holder):
    """The fields that code reads from a config: its attributes and keys."""
    called = {id(child.func) for child in ast.walk(node) if isinstance(child, ast.Call)}
    for child in ast.walk(node):
        name = None
        if isinstance(child, ast.Attribute) and is_holder(child.value) and isinstance(child.ctx, ast.Load) and id(child) not in called:
            name = child.attr
        elif isinstance(child, ast.Subscript) and is_holder(child.value):
            name = text(child.slice)
        elif isinstance(child, ast.Call) and child.args:
            function, first = child.func, child.args[0]
            if isinstance(function, ast.Name) and function.id in ("getattr", "hasattr") and is_holder(first):
                name = text(child.args[1])
            elif isinstance(function, ast.Attribute) and function.attr in ("get", "pop", "setdefault") and is_holder(function.value):
                name = text(first)
        if name is not None:
            yield name


def declared(node):
    """The fields that a config class declares."""
    for child in node.body:
        if isinstance(child, ast.AnnAssign) and "ClassVar" not in ast.unparse(child.annotation):
            yield child.target.id
        elif isinstance(child, ast.Assign) and child.targets[0].id == "attribute_map":
            yield from ast.literal_eval(child.value)


def is_kwargs(node):
    return isinstance(node, ast.Name) and node.id == "kwargs"


def is_self(node):
    return isinstance(node, ast.Name) and node.id == "self"


def with_bases(path, name):
    """A class and its base classes within the library, each with the module that defines it."""
    found = find(path, name, follow=lambda file: True)
    if found is None or not isinstance(found[1], ast.ClassDef):
        return
    yield found
    for base in found[1].bases:
        yield from with_bases(found[0], ast.unparse(base).split("[")[0])


def class_attributes(node):
    """The names in a class that are no fields: methods, properties, and constants."""
    for child in node.body:
        if isinstance(child, ast.FunctionDef):
            yield child.name
        elif isinstance(child, ast.Assign) and isinstance(child.targets[0], ast.Name):
            yield child.targets[0].id
        elif isinstance(child, ast.AnnAssign) and "ClassVar" in ast.unparse(child.annotation):
            yield child.target.id


def fields(architecture):
    folder = PACKAGE / "models" / architecture
    prefix = CLASS_PREFIXES.get(architecture, architecture.capitalize())
    given, read, no_fields = set(), set(), set()
    for _, config in with_bases(folder / f"configuration_{architecture}.py", f"{prefix}Config"):
        given |= set(declared(config))
        no_fields |= set(class_attributes(config))
        for method in config.body:
            if isinstance(method, ast.FunctionDef) and method.name in CONFIG_METHODS:
                given |= set(reads(method, is_kwargs))
                read |= set(reads(method, is_self))
    head = prefix + HEADS.get(architecture, "ForCausalLM")
    for node in used_nodes(folder / f"modeling_{architecture}.py", head):
        read |= set(reads(node, is_config))
    return sorted(name for name in given | (read - no_fields) if not name.startswith("_"))


def rope_fields():
    source = module(PACKAGE / "modeling_rope_utils.py")
    names = set(declared(source.definitions["RopeParameters"]))
    for node in source.definitions.values():
        names |= set(reads(node, is_rope))
    return sorted(names)


result = {
    "transformers": importlib.metadata.version("transformers"),
    "architectures": {architecture: fields(architecture) for architecture in ARCHITECTURES},
    "rope": rope_fields(),
}
if __name__ == "__main__":
    print(json.dumps(result, indent=1))
