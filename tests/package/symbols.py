#!/usr/bin/env python3
"""Links every public symbol of an installed tree against its shared library.

The symbols come from the headers: clang lists every function, constructor, destructor and variable
that they declare and do not define, and every class with virtual functions. The generated program
holds the address of each, so a symbol that is not exported stops the link.

    symbols.py --stage PREFIX --build FOLDER            the shared library exports all of them
    symbols.py --stage PREFIX --build FOLDER --planted  a library that hides some is found out
    symbols.py --stage PREFIX --build FOLDER --component etcd   the same of an optional component
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys

# A static function of a plain struct, a free function and a member of a class.
HIDDEN = ("fabric::sim::NicModel::connectx7()", "fabric::version()",
          "fabric::Counter::key() const")
FUNCTIONS = {"FunctionDecl", "CXXMethodDecl", "CXXConstructorDecl", "CXXDestructorDecl",
             "CXXConversionDecl"}
SCOPES = {"NamespaceDecl", "CXXRecordDecl", "LinkageSpecDecl"}
# Optional components, and the header of each. What it declares is in a library of its own.
COMPONENTS = {"etcd": "kv_etcd.h"}
# Of every header, so that a list that came out empty or short is not taken for success.
EXPECTED = ("fabric::version()", "fabric::Engine::~Engine()", "fabric::sim::World::now() const",
            "fabric::sim::NicModel::efa_200g()", "typeinfo for fabric::Runtime",
            "fabric::Notify::inbox(fabric::Inbox&, unsigned long)")


def run(*command, **options):
    return subprocess.run([str(part) for part in command], text=True, capture_output=True,
                          **options)


def checked(*command, **options):
    done = run(*command, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def demangled(names):
    lines = checked("c++filt", input="\n".join(names)).splitlines()
    return dict(zip(names, lines))


class Symbols:
    """The symbols that the headers declare: what their user may need at the link."""

    def __init__(self):
        self.declared = set()
        self.defined = set()

    def needed(self):
        return sorted(self.declared - self.defined)

    def add_scope(self, scope, where):
        for node in scope.get("inner", []):
            kind = node.get("kind")
            if kind in SCOPES and not node.get("isImplicit"):
                inside = where + [node["name"]] if "name" in node else where
                self.add_class(node, inside)
                self.add_scope(node, inside)
            elif kind in FUNCTIONS:
                self.add_function(node)
            elif kind == "VarDecl" and not node.get("inline") and not node.get("constexpr"):
                if "mangledName" in node and "init" not in node:
                    self.declared.add(node["mangledName"])

    def add_class(self, node, where):
        if node.get("definitionData", {}).get("isPolymorphic"):
            path = "".join(f"{len(part)}{part}" for part in where)
            self.declared.add(f"_ZTIN{path}E")

    def add_function(self, node):
        if node.get("isImplicit") or node.get("explicitlyDeleted") or node.get("pure"):
            return
        name = node.get("mangledName", "")
        body = any(inner.get("kind") in ("CompoundStmt", "CXXTryStmt")
                   for inner in node.get("inner", []))
        if body or node.get("explicitlyDefaulted"):
            self.defined.add(name)
        elif name:
            self.declared.add(name)


def namespaces(text):
    """The dump is one JSON object after another."""
    decoder, at = json.JSONDecoder(), text.find("{")
    while at >= 0:
        node, end = decoder.raw_decode(text, at)
        if node.get("kind") == "NamespaceDecl" and node.get("name") == "fabric":
            yield node
        at = text.find("{", end)


def public_symbols(stage, build, component):
    """Of the library, or of the optional component: then without those of the library."""
    headers = sorted(path.name for path in (stage / "include/fabric").glob("*.h"))
    if component is None:
        headers = [name for name in headers if name not in COMPONENTS.values()]
    everything = build / "headers.cc"
    everything.write_text("".join(f"#include <fabric/{name}>\n" for name in headers))
    dump = checked("clang++", "-std=c++20", f"-I{stage / 'include'}", "-fsyntax-only", "-Xclang",
                   "-ast-dump=json", "-Xclang", "-ast-dump-filter=fabric", everything)
    symbols = Symbols()
    for namespace in namespaces(dump):
        symbols.add_scope(namespace, ["fabric"])
    if component is None:
        return symbols.needed()
    return sorted(set(symbols.needed()) - set(public_symbols(stage, build, None)))


def unexported(symbols, library, build):
    """Links a program that refers to all of them; returns those that the linker did not find."""
    source = build / "symbols.s"
    lines = ["  .data", "  .globl main", "main:"] + [f"  .quad {name}" for name in symbols]
    source.write_text("\n".join(lines) + '\n  .section .note.GNU-stack,"",@progbits\n')
    linked = run("g++", "-pie", "-Wl,--no-demangle",
                 f"-Wl,-rpath-link,{library.parent}", source, library, "-o", build / "symbols")
    missing = set(re.findall(r"undefined reference to `([^'@]+)", linked.stderr))
    if linked.returncode != 0 and not missing:
        sys.exit(f"the link failed for another reason:\n{linked.stderr}")
    if linked.returncode == 0 and missing:
        sys.exit("the link succeeded with undefined references")
    return sorted(missing)


def library_without(symbols, archive, build):
    """The same objects as a shared library that keeps `symbols` to itself."""
    script = build / "hidden.map"
    local = " ".join(f"{name};" for name in symbols)
    public = 'extern "C++" { fabric::*; typeinfo?for?fabric::*; };'
    script.write_text(f"{{ global: {public} local: {local} *; }};\n")
    library = build / "libhidden.so"
    checked("g++", "-shared", "-o", library, f"-Wl,--version-script={script}",
            "-Wl,--whole-archive", archive, "-Wl,--no-whole-archive", "-lsodium", "-pthread",
            "-ldl")
    return library


def only(folder, name):
    found = sorted(folder.glob(f"lib*/**/{name}"))
    if not found:
        sys.exit(f"{name} is not installed in {folder}")
    return found[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stage", type=pathlib.Path, required=True)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--planted", action="store_true")
    parser.add_argument("--component", choices=COMPONENTS)
    arguments = parser.parse_args()
    build = arguments.build
    build.mkdir(parents=True, exist_ok=True)

    symbols = public_symbols(arguments.stage, build, arguments.component)
    names = demangled(symbols)
    expected = {"fabric::kv::EtcdDirectory::poll()"} if arguments.component else set(EXPECTED)
    absent = expected - set(names.values())
    if absent:
        sys.exit(f"the headers declare, and the list does not have: {sorted(absent)}")
    if arguments.planted:
        hidden = sorted(mangled for mangled, name in names.items() if name in HIDDEN)
        library = library_without(hidden, only(arguments.stage, "libfabric-lib.a"), build)
        found = unexported(symbols, library, build)
        if len(hidden) != len(HIDDEN) or found != hidden:
            sys.exit(f"hidden: {hidden}\nfound: {found}")
        print(f"found {len(found)} hidden symbols among {len(symbols)}")
        return
    suffix = f"-{arguments.component}" if arguments.component else ""
    library = only(arguments.stage, f"libfabric-lib{suffix}.so")
    missing = unexported(symbols, library, build)
    if missing:
        sys.exit("public, and not exported (FABRIC_EXPORT):\n  " +
                 "\n  ".join(names[name] for name in missing))
    print(f"{len(symbols)} public symbols, all exported")


main()
